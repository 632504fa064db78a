// Gated products of 129 to 256 tokens: silu(x gate^T) * (x up^T), where W [2F, K] holds the gate's F lines, then up's.
// Two processors, a cluster, have 128 tokens each and the same LINES lines of the gate and of up; one reads the gate's
// for both, the other up's. In a processor two groups of 128 threads multiply, 64 tokens each, with all their sums in
// registers: of these there are enough only where no thread does anything else, so that one of them fetches as well.
// Defined before: LINES, a multiple of 32 up to 224; STAGES, 2 at least; BIAS; `mma` of LINES columns.
constexpr u32 TOKENS = 128, COLUMNS = 64, LINE_BYTES = COLUMNS * 2, X_BYTES = TOKENS * LINE_BYTES;
constexpr u32 PART_BYTES = LINES * LINE_BYTES, STAGE_BYTES = X_BYTES + 2 * PART_BYTES, SUMS = LINES / 2;
constexpr u32 EIGHTS = LINES / 8;
#include "stages.cuh"

// What a block works on: `rank` of its tokens and of the part of W that it reads, `lines` F, the `first` of its own.
struct Share { u32 rank, tokens, lines, first; };

// Fill a stage with step `k`: a part of W for both blocks. Past the gate's end are up's lines, which nobody stores.
__device__ __forceinline__ void fetch_weights(const Ring& ring, const Map* w, u32 k, const Share& share) {
  const u32 line = share.rank * share.lines + share.first;
  barrier_expect(ring.filled(), STAGE_BYTES);
  tma_load_shared(ring.w() + share.rank * PART_BYTES, w, ring.filled(), READ_ONCE, 3, k * COLUMNS, line);
}
// And with this block's tokens.
__device__ __forceinline__ void fetch_tokens(const Ring& ring, const Map* x, u32 k, const Share& share) {
  tma_load(ring.x(), x, ring.filled(), READ_OFTEN, k * COLUMNS, share.rank * TOKENS);
}

// Both blocks filled the stage, so both are told that a group is done with it.
__device__ __forceinline__ void release(u32 emptied) {
  if ((threadIdx.x & 127) < 2) barrier_arrive_at(emptied, threadIdx.x & 1);
}

// 64 tokens' sums of the gate's lines and of up's. ahead: the stage to be filled next, the one that was read last.
__device__ __forceinline__ void multiply(float (&gate)[SUMS], float (&up)[SUMS], Ring ring, Ring ahead, u32 steps,
                                         const Map* x, const Map* w, u32 group, const Share& share) {
  for (u32 k = 0; k < steps; k++, ring.next(), ahead.next()) {
    barrier_wait(ring.filled(), ring.phase);
    products_begin();
    const u64 a = descriptor(ring.x() + group * 64 * LINE_BYTES), b = descriptor(ring.w());
#pragma unroll
    for (u32 part = 0; part < COLUMNS / 16; part++) {
      mma(gate, a + 2 * part, b + 2 * part, (k | part) != 0);
      mma(up, a + 2 * part, b + (PART_BYTES >> 4) + 2 * part, (k | part) != 0);
    }
    products_commit();
    products_wait<1>();
    if (k) release(ahead.emptied());
    if (threadIdx.x == 0 && k + STAGES - 1 < steps) {  // while the units work on this step
      if (k) barrier_wait(ahead.emptied(), ahead.phase ^ 1);
      fetch_weights(ahead, w, k + STAGES - 1, share);
      fetch_tokens(ahead, x, k + STAGES - 1, share);
    }
    __syncwarp();
  }
  products_wait<0>();
  settled(gate), settled(up);
}

// Rounded where separate kernels store values: gate, up, silu(gate), and the product when it is packed.
__device__ __forceinline__ float gated(float gate, float up) {
  gate = rounded(gate);
  return rounded(quotient(gate, 1.0f + __expf(-gate))) * rounded(up);
}

// A thread has two neighbouring lines of each eight, of two tokens of the warp's 16. One eight after another, each in a
// branch of its own: for a compiler that has them overlap there are not enough registers.
__device__ __forceinline__ void finish(const float (&gate)[SUMS], const float (&up)[SUMS], u32 room, const u16* bias,
                                       const Share& share) {
  const u32 lane = threadIdx.x & 31;
#pragma unroll
  for (u32 eight = 0; eight < EIGHTS; eight++) {
    if (share.first + eight * 8 >= share.lines) return;
    float more[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#if BIAS
    const u16* at = bias + share.first + eight * 8 + lane % 4 * 2;
    more[0] = widened(at[0]), more[1] = widened(at[1]);
    more[2] = widened(at[share.lines]), more[3] = widened(at[share.lines + 1]);
#endif
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      const u32 n = 4 * eight + 2 * i;
      const float left = gated(gate[n] + more[0], up[n] + more[2]);
      const float right = gated(gate[n + 1] + more[1], up[n + 1] + more[3]);
      shared_store(room + place(lane / 4 + 8 * i, eight) + lane % 4 * 4, packed(left, right));
    }
  }
}

// x [tokens, K] in boxes of [TOKENS, COLUMNS]; W in boxes of [LINES, COLUMNS]; bias [2F]; out [tokens, F].
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256, 1)
pair(const __grid_constant__ Map x, const __grid_constant__ Map w, const u16* bias, u16* out, int tokens, int lines,
     int steps) {
  extern __shared__ unsigned char memory[];
  __shared__ alignas(8) u64 barriers[2 * STAGES];
  const u32 stages = (shared_address(memory) + 1023) & ~1023u, bars = shared_address(barriers);
  const Ring ring = {bars, bars + 8 * STAGES, stages, 0, 0};
  const Share share = {cluster_rank(), (u32)tokens, (u32)lines, blockIdx.x / 2 * LINES};
  if (threadIdx.x == 0) {
    for (u32 s = 0; s < STAGES; s++) {
      barrier_init(ring.full + 8 * s, 1);
      barrier_init(ring.empty + 8 * s, 4);  // groups of threads that multiply, of both blocks
    }
    barriers_ready();
  }
  __syncwarp();
  cluster_sync();
  Ring ahead = ring;  // the first stage that is filled only when a step is under way
  for (u32 k = 0; k < STAGES - 1; k++, ahead.next())
    if (threadIdx.x == 0 && k < (u32)steps) fetch_weights(ahead, &w, k, share);
  front_has_ended();
  ahead = ring;
  for (u32 k = 0; k < STAGES - 1; k++, ahead.next())
    if (threadIdx.x == 0 && k < (u32)steps) fetch_tokens(ahead, &x, k, share);
  __syncwarp();
  const u32 warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);  // the same for all of it, as the compiler then knows
  float gate[SUMS], up[SUMS];
  multiply(gate, up, ring, ahead, steps, &x, &w, warp / 4, share);
  groups_meet();  // nobody reads stages any more, and results take their place
  const u32 room = stages + warp * 16 * LINES * 2;
  finish(gate, up, room, bias, share);
  __syncwarp();
  store(out, room, share.rank * TOKENS + warp * 16, share.tokens, share.first, share.lines);
  __syncwarp();
  cluster_sync();  // no block ends while the other may still arrive at its barriers, or read for it
}

// Gated products of 129 to 256 tokens: silu(x gate^T) * (x up^T), where W [2F, K] holds the gate's F lines, then up's.
// Two processors, a cluster, have 128 tokens each and the same lines of W; one reads the gate's for both, the other
// up's. In a processor one thread fetches, and two groups of 128 threads multiply, 64 tokens each. A share of lines
// takes two passes over K, of FIRST lines and of SECOND, through one ring of stages that never runs empty.
// Defined before: FIRST and SECOND, multiples of 32; STAGES, 2 at least; BIAS; `mma` of 2 * FIRST and 2 * SECOND columns.
constexpr u32 TOKENS = 128, COLUMNS = 64, LINE_BYTES = COLUMNS * 2, X_BYTES = TOKENS * LINE_BYTES;
constexpr u32 STAGE_BYTES = X_BYTES + 2 * FIRST * LINE_BYTES;
typedef unsigned short u16;

// Stages in shared memory that are filled and emptied in turn: of each, what it waits for, and the next one's number.
struct Ring {
  u32 full, empty, stages, stage, phase;
  __device__ __forceinline__ u32 filled() const { return full + 8 * stage; }
  __device__ __forceinline__ u32 emptied() const { return empty + 8 * stage; }
  __device__ __forceinline__ u32 x() const { return stages + stage * STAGE_BYTES; }
  __device__ __forceinline__ u32 w() const { return x() + X_BYTES; }
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) { stage = 0; phase ^= 1; }
  }
};

// What a block works on: `rank` of its tokens and of the part of W that it reads, `lines` F, `first` line of a pass.
struct Share { u32 rank, tokens, lines, first; };

template <u32 LINES>
__device__ __forceinline__ void fetch(Ring& ring, const Map* x, const Map* w, u32 steps, const Share& share) {
  const u32 line = share.rank * share.lines + share.first;  // past the gate's end that is up's, which nobody stores
  for (u32 k = 0; k < steps; k++, ring.next()) {
    barrier_wait(ring.emptied(), ring.phase ^ 1);
    barrier_expect(ring.filled(), X_BYTES + 2 * LINES * LINE_BYTES);
    tma_load_shared(ring.w() + share.rank * LINES * LINE_BYTES, w, ring.filled(), READ_ONCE, 3, k * COLUMNS, line);
    tma_load(ring.x(), x, ring.filled(), READ_OFTEN, k * COLUMNS, share.rank * TOKENS);
  }
}

// Both blocks filled the stage, so both are told that a group is done with it.
__device__ __forceinline__ void release(u32 emptied) {
  if ((threadIdx.x & 127) < 2) barrier_arrive_at(emptied, threadIdx.x & 1);
}

// 64 tokens' sums: the gate's lines in the first half of `sums`, up's in the second.
template <u32 LINES>
__device__ __forceinline__ void multiply(float (&sums)[LINES], Ring& ring, u32 steps, u32 group) {
  u32 before = 0;
  for (u32 k = 0; k < steps; k++, ring.next()) {
    barrier_wait(ring.filled(), ring.phase);
    products_begin();
    const u64 a = descriptor(ring.x() + group * 64 * LINE_BYTES), b = descriptor(ring.w());
#pragma unroll
    for (u32 part = 0; part < COLUMNS / 16; part++) mma(sums, a + 2 * part, b + 2 * part, (k | part) != 0);
    products_commit();
    products_wait<1>();
    if (k) release(before);
    before = ring.emptied();
  }
  products_wait<0>();
  release(before);
}

// Rounded where separate kernels store values: gate, up, silu(gate), and the product when it is packed.
__device__ __forceinline__ float gated(float gate, float up) {
  gate = rounded(gate);
  return rounded(quotient(gate, 1.0f + __expf(-gate))) * rounded(up);
}

// Where 8 lines of a token are in a warp's 16 rows of shared memory: neighbours in different banks.
template <u32 LINES> __device__ __forceinline__ u32 place(u32 row, u32 eight) {
  return (row * (LINES / 8) + (eight ^ (row & (LINES % 64 ? 3 : 7)))) * 16;
}

// A thread has two neighbouring lines of each eight, of two tokens of the warp's 16.
template <u32 LINES>
__device__ __forceinline__ void finish(float (&sums)[LINES], u32 room, const u16* bias, const Share& share) {
  const u32 lane = threadIdx.x & 31, up = LINES / 2;
#pragma unroll
  for (u32 eight = 0; eight < LINES / 8; eight++) {
    float more[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#if BIAS
    if (share.first + eight * 8 < share.lines) {
      const u16* at = bias + share.first + eight * 8 + lane % 4 * 2;
      more[0] = widened(at[0]), more[1] = widened(at[1]);
      more[2] = widened(at[share.lines]), more[3] = widened(at[share.lines + 1]);
    }
#endif
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      const u32 n = 4 * eight + 2 * i;
      const float left = gated(sums[n] + more[0], sums[n + up] + more[2]);
      const float right = gated(sums[n + 1] + more[1], sums[n + 1 + up] + more[3]);
      shared_store(room + place<LINES>(lane / 4 + 8 * i, eight) + lane % 4 * 4, packed(left, right));
    }
  }
}

// A warp's 16 tokens from `token` on: whole rows side by side, eight lines a store.
template <u32 LINES>
__device__ __forceinline__ void store(u16* out, u32 room, u32 token, const Share& share) {
  constexpr u32 EIGHTS = LINES / 8;
  for (u32 n = threadIdx.x & 31; n < 16 * EIGHTS; n += 32) {
    const u32 row = n / EIGHTS, eight = n % EIGHTS, line = share.first + eight * 8;
    const uint4 v = shared_load16(room + place<LINES>(row, eight));
    if (token + row < share.tokens && line < share.lines) *(uint4*)(out + (u64)(token + row) * share.lines + line) = v;
  }
}

template <u32 LINES>
__device__ __forceinline__ void pass(Ring& ring, u32 steps, u32 room, const u16* bias, u16* out, const Share& share) {
  const u32 warp = (threadIdx.x >> 5) - 4;  // of the eight that multiply
  const u32 own = room + warp * 16 * FIRST * 2;  // in either pass: other warps may be in the other
  float sums[LINES];
  multiply<LINES>(sums, ring, steps, warp / 4);
  finish<LINES>(sums, own, bias, share);
  __syncwarp();
  store<LINES>(out, own, share.rank * TOKENS + warp * 16, share);
  __syncwarp();
}

// x [tokens, K] in boxes of [TOKENS, COLUMNS]; W in boxes of FIRST and of SECOND lines; bias [2F]; out [tokens, F].
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
pair(const __grid_constant__ Map x, const __grid_constant__ Map w_first, const __grid_constant__ Map w_second,
     const u16* bias, u16* out, int tokens, int lines, int steps) {
  extern __shared__ unsigned char memory[];
  __shared__ alignas(8) u64 barriers[2 * STAGES];
  const u32 stages = (shared_address(memory) + 1023) & ~1023u, bars = shared_address(barriers);
  Ring ring = {bars, bars + 8 * STAGES, stages, 0, 0};
  Share share = {cluster_rank(), (u32)tokens, (u32)lines, blockIdx.x / 2 * (FIRST + SECOND)};
  if (threadIdx.x == 0) {
    for (u32 s = 0; s < STAGES; s++) {
      barrier_init(ring.full + 8 * s, 1);
      barrier_init(ring.empty + 8 * s, 4);  // groups of threads that multiply, of both blocks
    }
    barriers_ready();
  }
  __syncwarp();
  cluster_sync();
  if (threadIdx.x < 128) {
    registers_down<40>();
    if (threadIdx.x == 0) {
      fetch<FIRST>(ring, &x, &w_first, steps, share);
      share.first += FIRST;
      fetch<SECOND>(ring, &x, &w_second, steps, share);
    }
  } else {
    registers_up<232>();
    const u32 room = stages + STAGES * STAGE_BYTES;
    pass<FIRST>(ring, steps, room, bias, out, share);
    share.first += FIRST;
    pass<SECOND>(ring, steps, room, bias, out, share);
  }
  __syncwarp();
  cluster_sync();  // no block ends while the other may still arrive at its barriers, or read for it
}

// Products of 129 to 256 tokens: x W^T, W [N, K], where K is long and N is short: two processors, a cluster, have half
// of K each for the same 128 tokens and LINES lines. In the end each hands the other its sums of half of the lines,
// and adds what it is handed to its own of the other half. In a processor one thread fetches, and two groups of 128
// threads multiply, 64 tokens each.
// Defined before: LINES, a multiple of 128; STAGES, 2 at least; BIAS; `mma` of LINES columns.
constexpr u32 TOKENS = 128, COLUMNS = 64, LINE_BYTES = COLUMNS * 2, X_BYTES = TOKENS * LINE_BYTES;
constexpr u32 STAGE_BYTES = X_BYTES + LINES * LINE_BYTES, OWN = LINES / 2;
constexpr u32 EIGHTS = OWN / 8;
#include "stages.cuh"

// What a block works on: `half` of K, in as many steps as the other (columns past the end are zeros); of its lines
// from `line` on it stores those of that half.
struct Share { u32 half, steps, token, line; };

__device__ __forceinline__ void fetch(Ring& ring, const Map* x, const Map* w, const Share& share) {
  for (u32 k = share.half * share.steps; k < (share.half + 1) * share.steps; k++, ring.next()) {
    barrier_wait(ring.emptied(), ring.phase ^ 1);
    barrier_expect(ring.filled(), STAGE_BYTES);
    tma_load(ring.w(), w, ring.filled(), READ_ONCE, k * COLUMNS, share.line);
    tma_load(ring.x(), x, ring.filled(), READ_OFTEN, k * COLUMNS, share.token);
  }
}

__device__ __forceinline__ void release(u32 emptied) {
  if (threadIdx.x % 128 == 0) barrier_arrive(emptied);
}

// 64 tokens' sums over this half of K.
__device__ __forceinline__ void multiply(float (&sums)[OWN], Ring& ring, u32 steps, u32 group) {
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
}

// Sums of the lines that the other block stores go there, each thread's to its like; what comes from there is added
// to the sums of the own lines, which then are the first half of `sums`.
__device__ __forceinline__ void exchange(float (&sums)[OWN], u32 room, u32 half) {
  const u32 mine = room + (threadIdx.x - 128) * 16, theirs = address_at(mine, half ^ 1);
#pragma unroll
  for (u32 n = 0; n < OWN / 2; n += 4) {
    const u32 i = n, j = n + OWN / 2;
    cluster_store16(theirs + n * 1024, half ? sums[i] : sums[j], half ? sums[i + 1] : sums[j + 1],
                    half ? sums[i + 2] : sums[j + 2], half ? sums[i + 3] : sums[j + 3]);
  }
  cluster_sync();
#pragma unroll
  for (u32 n = 0; n < OWN / 2; n += 4) {
    const uint4 v = shared_load16(mine + n * 1024);
    const float more[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
#pragma unroll
    for (u32 i = n; i < n + 4; i++) sums[i] = (half ? sums[i + OWN / 2] : sums[i]) + more[i - n];
  }
}

// A thread has two neighbouring lines of each eight, of two tokens of the warp's 16.
__device__ __forceinline__ void finish(const float (&sums)[OWN], u32 room, const u16* bias, u32 line, u32 lines) {
  const u32 lane = threadIdx.x & 31;
#pragma unroll
  for (u32 eight = 0; eight < EIGHTS; eight++) {
    float left = 0.0f, right = 0.0f;
#if BIAS
    if (line + eight * 8 < lines) {
      const u16* at = bias + line + eight * 8 + lane % 4 * 2;
      left = widened(at[0]), right = widened(at[1]);
    }
#endif
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      const u32 n = 4 * eight + 2 * i;
      shared_store(room + place(lane / 4 + 8 * i, eight) + lane % 4 * 4, packed(sums[n] + left, sums[n + 1] + right));
    }
  }
}

// x [tokens, K] in boxes of [TOKENS, COLUMNS], W [lines, K] in boxes of [LINES, COLUMNS]; bias [lines]; out [tokens,
// lines], lines a multiple of 8. Grid: blocks of lines x blocks of tokens x halves. steps: of each half of K.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
halves(const __grid_constant__ Map x, const __grid_constant__ Map w, const u16* bias, u16* out, int tokens, int lines,
       int steps, int blocks) {
  extern __shared__ unsigned char memory[];
  __shared__ alignas(8) u64 barriers[2 * STAGES];
  const u32 stages = (shared_address(memory) + 1023) & ~1023u, bars = shared_address(barriers);
  Ring ring = {bars, bars + 8 * STAGES, stages, 0, 0};
  const u32 cluster = blockIdx.x / 2;
  const Share share = {cluster_rank(), (u32)steps, cluster % blocks * TOKENS, cluster / blocks * LINES};
  if (threadIdx.x == 0) {
    for (u32 s = 0; s < STAGES; s++) {
      barrier_init(ring.full + 8 * s, 1);
      barrier_init(ring.empty + 8 * s, 2);  // groups of threads that multiply
    }
    barriers_ready();
  }
  __syncwarp();
  cluster_sync();
  if (threadIdx.x < 128) {
    if (threadIdx.x == 0) fetch(ring, &x, &w, share);
    __syncwarp();
    cluster_sync();  // that in `exchange`: behind it nobody reads or writes what is the other's, and blocks may end
  } else {
    const u32 warp = (threadIdx.x >> 5) - 4, room = stages + STAGES * STAGE_BYTES;
    const u32 own = room + warp * 16 * OWN * 2, line = share.line + share.half * OWN;
    float sums[OWN];
    multiply(sums, ring, steps, warp / 4);
    exchange(sums, room, share.half);
    groups_meet();  // what was handed over has been read, and results take its place
    finish(sums, own, bias, line, (u32)lines);
    __syncwarp();
    store(out, own, share.token + warp * 16, (u32)tokens, line, (u32)lines);
  }
}

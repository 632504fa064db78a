// Kernels that show what the shared functions do. Defined before: BF; DIMS, the dimensions of the map; WIDTH, columns
// of the product.
constexpr u32 LINES = 16, LINE = 128;  // a box is 16 lines of 128 bytes

// Every block of a cluster of two writes the box that its first block has loaded for both: one block's own box
// where DIMS is not 2. out: [blocks, 16, 64] of 16 bits.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128, 1)
copy(const __grid_constant__ Map map, uint4* out, int row, float unused) {
  extern __shared__ unsigned char raw[];
  const u32 base = (shared_address(raw) + 1023) & ~1023u;
  __shared__ alignas(8) u64 memory[1];
  const u32 bar = shared_address(memory);
  if (threadIdx.x == 0) {
    barrier_init(bar, 1);
    barriers_ready();
  }
  cluster_sync();
  if (threadIdx.x == 0) {
    barrier_expect(bar, LINES * LINE);
#if DIMS == 2
    if (cluster_rank() == 0) tma_load_shared(base, &map, bar, READ_ONCE, 3, 0, row);
#elif DIMS == 3
    tma_load(base, &map, bar, READ_OFTEN, 0, row, blockIdx.x);
#else
    tma_load(base, &map, bar, READ_OFTEN, 0, row, blockIdx.x & 1, blockIdx.x >> 1);
#endif
  }
  barrier_wait(bar, 0);
  const u32 line = threadIdx.x / 8, chunk = threadIdx.x % 8;
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(base + line * LINE + (chunk ^ (line & 7)) * 16) : "memory");
  out[blockIdx.x * 128 + threadIdx.x] = v;
  cluster_sync();
}

// out [64, WIDTH] fp32 = a [64, 64] times b [WIDTH, 64] transposed, after `add` rounds of the same are added.
extern "C" __global__ void __launch_bounds__(128, 1)
product(const __grid_constant__ Map a, const __grid_constant__ Map b, float* out, int add) {
  extern __shared__ unsigned char raw[];
  const u32 base = (shared_address(raw) + 1023) & ~1023u;
  __shared__ alignas(8) u64 memory[1];
  const u32 bar = shared_address(memory);
  if (threadIdx.x == 0) {
    barrier_init(bar, 1);
    barriers_ready();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    barrier_expect(bar, (64 + WIDTH) * LINE);
    tma_load(base, &a, bar, READ_OFTEN, 0, 0);
    tma_load(base + 64 * LINE, &b, bar, READ_ONCE, 0, 0);
  }
  barrier_wait(bar, 0);
  float acc[WIDTH / 2];
  products_begin();
  const u64 left = descriptor(base), right = descriptor(base + 64 * LINE);
  for (int round = 0; round <= add; round++)
#pragma unroll
    for (u32 j = 0; j < 4; j++) mma(acc, left + 2 * j, right + 2 * j, (round | j) != 0);
  products_commit();
  products_wait<0>();
  const u32 row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (u32 j = 0; j < WIDTH / 8; j++)
#pragma unroll
    for (u32 i = 0; i < 4; i++) out[(row + i / 2 * 8) * WIDTH + j * 8 + column + i % 2] = acc[4 * j + i];
}

// out: values rounded to 16 bits as fp32; then pairs of them, packed; `factor` times `count` at last.
extern "C" __global__ void values(const float* in, float* rounds, u32* pairs, float* last, int count, float factor) {
  const int i = threadIdx.x;
  if (i < count) {
    rounds[i] = rounded(in[i]);
    if (i % 2 == 0) pairs[i / 2] = packed(in[i], in[i + 1]);
  }
  if (i == 0) *last = factor * count;
}

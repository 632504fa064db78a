// Device functions for Hopper (sm_90a) that kernels share: barriers in shared memory, loads by the tensor memory
// accelerator (TMA), warpgroup products, clusters, 16-bit values. Put in front of every source: no kernel knows it.
// Defined before: BF, 1 where 16-bit values are bfloat16, 0 where they are float16.
// Semantics: PTX ISA, "mbarrier", "cp.async.bulk.tensor", "wgmma" and "barrier.cluster".
typedef unsigned u32;
typedef unsigned long long u64;
struct alignas(64) Map { char bytes[128]; };  // a tensor map, passed as `const __grid_constant__ Map`

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void shared_store(u32 to, u32 v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ uint4 shared_load16(u32 from) {  // a multiple of 16
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
  return v;
}

// Of a kernel that is launched dependently (PTX ISA, "griddepcontrol"; launched plainly it begins behind it): kernels/
// launch.py says what a program may do before. The next kernel starts when this one has ended.
__device__ __forceinline__ void front_has_ended() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Barriers: addresses in shared memory of 8 bytes each.
__device__ __forceinline__ void barrier_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
// After the initialisations of one thread; others see them after a cluster_sync() or __syncthreads().
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// One arrival, and `bytes` of loads to wait for.
__device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}"
      ::"r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrive at the barrier that has the same address in another block of the cluster, or in this one.
__device__ __forceinline__ void barrier_arrive_at(u32 bar, u32 block) {
  asm volatile(
      "{\n.reg .b32 far;\nmapa.shared::cluster.u32 far, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [far];\n}"
      ::"r"(bar), "r"(block) : "memory");
}

// Loads of a map's box to shared memory; coordinates in elements, innermost first; zeros outside of the tensor.
// What the second-level cache does with it: keeps it as anything else, evicts it first, evicts it last.
constexpr u64 READ = 0x1000000000000000ull, READ_ONCE = 0x12F0000000000000ull, READ_OFTEN = 0x14F0000000000000ull;
__device__ __forceinline__ void tma_load(u32 to, const Map* map, u32 bar, u64 policy, u32 c0, u32 c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3}], [%4], %5;"
      ::"r"(to), "l"(map), "r"(c0), "r"(c1), "r"(bar), "l"(policy) : "memory");
}
__device__ __forceinline__ void tma_load(u32 to, const Map* map, u32 bar, u64 policy, u32 c0, u32 c1, u32 c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4}], [%5], %6;"
      ::"r"(to), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(bar), "l"(policy) : "memory");
}
__device__ __forceinline__ void tma_load(u32 to, const Map* map, u32 bar, u64 policy, u32 c0, u32 c1, u32 c2, u32 c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4, %5}], [%6], %7;"
      ::"r"(to), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar), "l"(policy) : "memory");
}
// The same box for every block of the cluster whose bit is set, at the same address and barrier there.
__device__ __forceinline__ void tma_load_shared(u32 to, const Map* map, u32 bar, u64 policy, u32 blocks, u32 c0, u32 c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%2, %3}], [%4], %5, %6;"
      ::"r"(to), "l"(map), "r"(c0), "r"(c1), "r"(bar), "h"((unsigned short)blocks), "l"(policy) : "memory");
}
__device__ __forceinline__ void global_store16(void* to, uint4 v, u64 policy) {  // a multiple of 16
  asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;"
               ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy) : "memory");
}

// Warpgroup products: a descriptor of lines of 128 bytes, swizzled by 128 bytes as TMA writes them, in groups of 8
// lines that lie `pitch` bytes apart (of dense ones 1,024, which `at` is a multiple of); 16 columns further is + 2.
__device__ __forceinline__ u64 descriptor(u32 at, u32 pitch = 1024) {
  return (u64)((at & 0x3FFFF) >> 4) | (1ull << 16) | ((u64)(pitch >> 4) << 32) | (1ull << 62);
}
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Nothing that reads these sums is moved in front of here, between products that write them.
template <u32 COUNT> __device__ __forceinline__ void settled(float (&sums)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// Clusters. An address in this block's shared memory as one of another block's, for stores there.
__device__ __forceinline__ u32 address_at(u32 here, u32 block) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
  return there;
}
__device__ __forceinline__ void cluster_store16(u32 there, float a, float b, float c, float d) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
__device__ __forceinline__ void groups_meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }  // two of 128 threads
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ float exp2_of(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
// As Triton divides: off by two units in the last place at most, for all values.
__device__ __forceinline__ float quotient(float a, float b) {
  float q;
  asm("div.full.f32 %0, %1, %2;" : "=f"(q) : "f"(a), "f"(b));
  return q;
}

// 16-bit values. `packed` has its first argument in the low half.
#if BF
#define TYPE "bf16"
#else
#define TYPE "f16"
#endif
__device__ __forceinline__ u32 packed(float low, float high) {
  u32 both;
  asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ __forceinline__ float widened(unsigned short v) {
#if BF
  return __uint_as_float((u32)v << 16);
#else
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(v));
  return wide;
#endif
}
__device__ __forceinline__ unsigned short narrow(float v) { return (unsigned short)packed(v, v); }
__device__ __forceinline__ float rounded(float v) { return widened(narrow(v)); }

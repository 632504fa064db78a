// What attention_queue.cu begins with, and what hopper.cuh offers, for programs on a host.
#include "programs_on_host.h"

#define blockIdx (Index{host::now->program->number})
#define gridDim (Index{(u32)host::programs.size()})
constexpr u64 READ = 0, READ_OFTEN = 1;
inline u32 shared_address(const void* p) { return (u32)((const unsigned char*)p - host::now->program->memory.data()); }
inline void front_has_ended() {
  host::now->program->waited = true;
  host::until([] { return host::front.ended; });
}
inline void barrier_init(u32 bar, u32 arrivals) {
  host::now->program->barriers[bar] = {(int)arrivals, (int)arrivals, 0, 0};
}
inline void barriers_ready() {}
inline void barrier_expect(u32 bar, u32 bytes) { host::count(host::barrier(*host::now->program, bar), 1, bytes); }
inline void barrier_arrive(u32 bar) { host::count(host::barrier(*host::now->program, bar), 1, 0); }
inline void barrier_wait(u32 bar, u32 parity) {
  host::Barrier* found = host::barrier(*host::now->program, bar);
  host::until([found, parity] { return found->phase != parity; });
}
inline void tma_load(u32 to, const Map* map, u32 bar, u64, u32 c0, u32 c1, u32 c2, u32 c3) {
  host::copy_box(to, map, bar, {(int)c0, (int)c1, (int)c2, (int)c3});
}
inline u64 descriptor(u32 at, u32 pitch) { return (at & 0x3FFFF) >> 4 | (u64)(pitch >> 4) << 32; }
inline void products_begin() {}
template <u32 COUNT> inline void settled(float (&)[COUNT]) {}
inline void mma(float (&sums)[4], u64 a, u64 b, int keep) { host::now->open.push_back({sums, a, b, keep, false}); }
inline void mma_turned(float (&sums)[4], u64 a, u64 b) { host::now->open.push_back({sums, a, b, 1, true}); }
inline auto& own_batches() { return host::now->program->batches[host::now->x / host::WARP]; }
inline void products_commit() {
  auto& batches = own_batches();
  if (batches.size() == host::now->batches) batches.push_back(std::make_unique<host::Batch>());
  host::Batch& batch = *batches[host::now->batches++];
  batch.of[host::now->x % host::WARP].swap(host::now->open);
  batch.committed++;
}
template <int PENDING> inline void products_wait() {  // a warp's: all of it, or nothing, is done
  auto& batches = own_batches();
  const u32 most = host::now->batches, warp = host::now->x / host::WARP;
  if (most <= PENDING) return;
  host::until([&batches, most] { return batches[most - PENDING - 1]->committed == host::WARP; });
  for (u32 n = 0; n < most - PENDING; n++) host::perform(*host::now->program, warp, *batches[n]);
}
inline void __syncwarp() { host::meet(host::warp(), host::WARP); }
inline void __syncthreads() { host::meet(host::now->program->all, host::THREADS); }
template <class T> inline T exchanged(T value, u32 from) {
  auto& told = host::now->program->told[host::now->x / host::WARP][host::now->shuffles++ % 2];
  memcpy(&told[host::now->x % host::WARP], &value, sizeof(T));
  __syncwarp();
  memcpy(&value, &told[from], sizeof(T));
  return value;
}
template <class T> inline T __shfl_sync(u32, T value, u32 from) { return exchanged(value, from); }
template <class T> inline T __shfl_xor_sync(u32, T value, u32 far) {
  return exchanged(value, host::now->x % host::WARP ^ far);
}
inline int atomicAdd(u32* to, u32 by) {
  host::pause();
  const u32 before = *to;
  *to += by;
  return before;
}
inline u32 ended_before(u32* count) { return atomicAdd(count, 1); }
inline int min(int a, int b) { return a < b ? a : b; }
inline float __int_as_float(u32 bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
template <class T> inline T read(const T* from) {
  host::pause();
  for (const host::Range& range : host::readable) {
    const auto* begin = (const unsigned char*)range.begin;
    if ((const unsigned char*)from >= begin && (const unsigned char*)(from + 1) <= begin + range.bytes) return *from;
  }
  host::end("a read from outside of a tensor");
}
inline float exp2_of(float v) { return exp2f(v); }
struct Zeros { u64 of[2] = {0, 0}; };
inline void store(u32 to, unsigned short v) { host::store(to, v); }
inline void shared_store(u32 to, u32 v) { host::store(to, v); }
inline void store_zeros(u32 to) { host::store(to, Zeros()); }
inline uint4 shared_load16(u32 from) {
  uint4 v;
  memcpy(&v, host::at(host::now->program->memory, from, 16), 16);
  return v;
}
inline void global_store16(void* to, uint4 v, u64) {
  if ((u64)to % 16) host::fail("a store of 16 bytes that is not aligned");
  memcpy(to, &v, 16);
}
inline void meet() { host::meet(host::now->program->computing, host::COMPUTING); }
inline void seen_by_units() { host::seen(); }

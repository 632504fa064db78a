// What kernels/cuda/hopper.cuh offers, for kernels that run on a host. Values are bfloat16.
#include "cluster_on_host.h"

#define blockIdx (Index{host::now->block->number})

inline u32 shared_address(const void* p) { return (u32)((const unsigned char*)p - host::now->block->memory.data()); }
inline void shared_store(u32 to, u32 v) { memcpy(host::at(*host::now->block, to, 4), &v, 4); }
inline uint4 shared_load16(u32 from) {
  uint4 v;
  memcpy(&v, host::at(*host::now->block, from, 16), 16);
  return v;
}
inline void front_has_ended() {
  host::now->block->waited = true;
  host::until([] { return host::front.ended; });
}
inline void barrier_init(u32 bar, u32 arrivals) {
  host::now->block->barriers[bar] = {(int)arrivals, (int)arrivals, 0, 0};
}
inline void barriers_ready() {}
inline void barrier_expect(u32 bar, u32 bytes) { host::count(host::barrier(*host::now->block, bar), 1, bytes); }
inline void barrier_wait(u32 bar, u32 parity) {
  host::Barrier* found = host::barrier(*host::now->block, bar);
  if (!found) host::end("");
  host::until([found, parity] { return found->phase != parity; });
}
inline void barrier_arrive(u32 bar) { host::count(host::barrier(*host::now->block, bar), 1, 0); }
inline void barrier_arrive_at(u32 bar, u32 block) { host::count(host::barrier(host::blocks[block], bar), 1, 0); }
constexpr u64 READ = 0, READ_ONCE = 1, READ_OFTEN = 2;
inline void tma_load(u32 to, const Map* map, u32 bar, u64, u32 c0, u32 c1) {
  host::copy_box(to, map, bar, 1u << host::now->block->rank, c0, c1);
}
inline void tma_load_shared(u32 to, const Map* map, u32 bar, u64, u32 blocks, u32 c0, u32 c1) {
  host::copy_box(to, map, bar, blocks, c0, c1);
}
inline u64 descriptor(u32 at) { return (at & 0x3FFFF) >> 4; }
inline void products_begin() {}
template <size_t HALF> inline void mma(float (&sums)[HALF], u64 a, u64 b, int keep) {
  host::now->open.push_back({sums, HALF, a, b, keep});
}
inline std::vector<host::Batch>& own_batches() { return host::now->block->batches[host::now->x / 128]; }
inline void products_commit() {
  auto& batches = own_batches();
  if (batches.size() == host::now->batches) batches.emplace_back();
  host::Batch& batch = batches[host::now->batches++];
  batch.of[host::now->x % 128].swap(host::now->open);
  host::now->open.clear(), batch.committed++;
}
template <int PENDING> inline void products_wait() {  // of a group of 128 threads: all of it, or nothing, is done
  auto& batches = own_batches();
  const u32 most = host::now->batches;
  if (most <= PENDING) return;
  host::until([&batches, most] { return batches[most - PENDING - 1].committed == 128; });
  for (u32 n = 0; n < most - PENDING; n++) host::perform(*host::now->block, batches[n]);
}
template <u32 COUNT> inline void settled(float (&)[COUNT]) {}
constexpr u32 BLOCK_AT = 24;  // the bit above which an address of the cluster says whose it is
inline u32 address_at(u32 here, u32 block) { return here | block << BLOCK_AT; }
inline void cluster_store16(u32 there, float a, float b, float c, float d) {
  host::Block& block = host::blocks[there >> BLOCK_AT];
  const u32 at = there & ((1 << BLOCK_AT) - 1);
  const float values[4] = {a, b, c, d};
  if (!block.running) host::fail("a block that has ended is handed something");
  if (at % 16) host::fail("a store of 16 bytes that is not aligned");
  memcpy(host::at(block, at, 16), values, 16);
}
inline void groups_meet() { host::meet(host::now->block->groups, 256); }
inline u32 cluster_rank() { return host::now->block->rank; }
inline void cluster_sync() { host::meet(host::cluster, host::threads.size()); }
inline void __syncwarp() { host::meet(host::now->block->warps[host::now->x / 32], 32); }
inline u32 __shfl_sync(u32, u32 value, u32 from) {
  u32* told = host::now->block->told[host::now->x / 32];
  told[host::now->x % 32] = value;
  __syncwarp();
  value = told[from];
  __syncwarp();
  return value;
}
inline float quotient(float a, float b) { return a / b; }
inline float __expf(float v) { return expf(v); }
inline float __uint_as_float(u32 bits) { return host::as_float(bits); }
inline float widened(unsigned short v) { return host::wide(v); }
inline float rounded(float v) { return widened(narrow(v)); }
inline u32 packed(float low, float high) { return narrow(low) | (u32)narrow(high) << 16; }

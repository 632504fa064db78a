// A cluster of two blocks on a host: its threads are coroutines, which run in an order drawn from a seed. Copies and
// products happen late or early, and the kernel in front ends, as hardware may have it; what no kernel may do ends the
// run with a sentence. A group's products are done together, whichever of its warps waits for them. Knows no kernel.
// Defined before: BLOCK_THREADS, a multiple of 128.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cuda_on_host.h"
#include "front_on_host.h"

struct Map { const unsigned short* data; u64 height, width, stride, columns, rows; };  // in elements; then the box

namespace host {
constexpr u32 PER_BLOCK = BLOCK_THREADS, STACK = 64 << 10, STATIC = 64, DYNAMIC = 128;  // bytes in a block's memory

struct Barrier { int arrivals, pending; long bytes; u32 phase; };
struct Product { float* sums; u32 half; u64 a, b; int keep; };
struct Batch {  // a group's products between two commits
  std::vector<std::vector<Product>> of = std::vector<std::vector<Product>>(128);
  u32 committed = 0;
  bool done = false;
};
struct Meeting { u32 here = 0, turn = 0; };

struct Block {
  u32 rank, number, running = PER_BLOCK;
  bool waited = false;  // for the kernel in front
  std::vector<unsigned char> memory;
  std::map<u32, Barrier> barriers;
  Meeting warps[PER_BLOCK / 32], groups;
  u32 told[PER_BLOCK / 32][32];  // of shuffles
  std::vector<Batch> batches[PER_BLOCK / 128];
};

struct Thread {
  u32 x;
  Block* block;
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(STACK);
  std::function<bool()> ready = [] { return true; };
  bool done = false;
  u32 batches = 0;
  std::vector<Product> open;
};

struct Copy { std::vector<unsigned char> lines; u32 to, bar; Block* block; };

inline std::vector<Block> blocks;
inline std::vector<Thread> threads;
inline std::vector<Copy> copies;
inline Meeting cluster;
inline Thread* now;
inline ucontext_t scheduler;
inline std::function<void()> kernel;

inline void leave() { swapcontext(&now->context, &scheduler); }
[[noreturn]] inline void end(const std::string& why) {
  fail(why);
  while (true) leave();
}
inline void until(std::function<bool()> ready) {
  now->ready = ready;
  leave();
}
inline void meet(Meeting& meeting, u32 count) {
  const u32 turn = meeting.turn;
  if (++meeting.here == count) meeting.here = 0, meeting.turn++;
  until([&meeting, turn] { return meeting.turn != turn; });
}

inline unsigned char* at(Block& block, u32 address, u32 size) {
  if (address < DYNAMIC || address + size > block.memory.size()) {
    fail("shared memory that is not there");
    address = DYNAMIC;
  }
  return block.memory.data() + address;
}
inline u32 swizzled(u32 address) { return address ^ ((address >> 7 & 7) << 4); }
inline float as_float(u32 bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
inline float wide(unsigned short v) { return as_float((u32)v << 16); }
inline float value(Block& block, u32 address) {
  unsigned short v;
  memcpy(&v, at(block, swizzled(address), 2), 2);
  return wide(v);
}

inline Barrier* barrier(Block& block, u32 bar) {
  if (!block.running) fail("a block that has ended is told of something");
  auto found = block.barriers.find(bar);
  if (found != block.barriers.end()) return &found->second;
  fail("a barrier before it is there");
  return nullptr;
}
inline void count(Barrier* bar, int arrivals, long bytes) {
  if (!bar) return;
  bar->pending -= arrivals;
  bar->bytes += bytes;
  if (bar->pending < 0) fail("more arrivals than a barrier has");
  if (bar->pending == 0 && bar->bytes == 0) bar->phase ^= 1, bar->pending = bar->arrivals;
}

inline void perform(const Copy& copy) {
  for (u32 n = 0; n < copy.lines.size(); n += 16)
    memcpy(at(*copy.block, swizzled(copy.to + n), 16), copy.lines.data() + n, 16);
  count(barrier(*copy.block, copy.bar), 0, -(long)copy.lines.size());
}
inline void copy_box(u32 to, const Map* map, u32 bar, u32 blocks_of, u32 c0, u32 c1) {
  Copy copy{std::vector<unsigned char>(map->rows * map->columns * 2), to, bar, nullptr};
  if (map->columns * 2 != 128 || to % 1024) end("a box that is not swizzled as it is read");
  for (u64 r = 0; r < map->rows; r++)
    for (u64 c = 0; c < map->columns; c++)
      if (c1 + r < map->height && c0 + c < map->width)
        memcpy(&copy.lines[(r * map->columns + c) * 2], map->data + (c1 + r) * map->stride + c0 + c, 2);
  for (Block& block : blocks) {
    copy.block = &block;
    if (blocks_of >> block.rank & 1) copies.push_back(copy), front.copied += front.ended ? 0 : copy.lines.size();
  }
}

inline void multiply(Block& block, std::vector<Product>* of, u32 n) {
  const Product first = of[0][n];
  const u32 columns = 2 * first.half, a = (first.a & 0x3FFF) << 4, b = (first.b & 0x3FFF) << 4;
  std::vector<float> x(64 * 16), w(columns * 16);
  for (u32 n = 0; n < x.size(); n++) x[n] = value(block, a + n / 16 * 128 + n % 16 * 2);
  for (u32 n = 0; n < w.size(); n++) w[n] = value(block, b + n / 16 * 128 + n % 16 * 2);
  for (u32 t = 0; t < 128; t++) {
    const Product& own = of[t][n];
    if (own.a != first.a || own.b != first.b || own.half != first.half || own.keep != first.keep)
      fail("threads that multiply different things");
    for (u32 i = 0; i < own.half; i++) {
      const u32 row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
      float sum = own.keep ? own.sums[i] : 0;
      for (u32 k = 0; k < 16; k++) sum += x[row * 16 + k] * w[column * 16 + k];
      own.sums[i] = sum;
    }
  }
}
inline void perform(Block& block, Batch& batch) {
  if (batch.done) return;
  batch.done = true;
  for (u32 n = 0; n < batch.of[0].size(); n++) multiply(block, batch.of.data(), n);
}

inline void body() {
  kernel();
  now->done = true;
  if (!--now->block->running && !now->block->waited && !front.plain()) fail("a block ends without the wait");
  leave();
}
inline bool advance(Thread& thread) {
  if (thread.done || !thread.ready()) return false;
  now = &thread;
  swapcontext(&scheduler, &thread.context);
  return true;
}

inline void set_up(u32 first, u32 memory) {
  copies.clear(), cluster = Meeting();
  blocks.assign(2, Block());
  for (u32 rank = 0; rank < 2; rank++) {
    blocks[rank].rank = rank, blocks[rank].number = first + rank;
    blocks[rank].memory.assign(DYNAMIC + memory, 0xFF);  // nothing that is a number
  }
  threads.clear(), threads.resize(2 * PER_BLOCK);
  for (u32 n = 0; n < threads.size(); n++) {
    Thread& thread = threads[n];
    thread.x = n % PER_BLOCK, thread.block = &blocks[n / PER_BLOCK];
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data(), thread.context.uc_stack.ss_size = STACK;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, body, 0);
  }
}

// What the hardware does beside the threads, each kind never before it must, at times, or at once.
struct Habits {
  std::mt19937& random;
  u32 copying = random() % 3, multiplying = random() % 3;
  bool now(u32 habit) { return habit == 2 || (habit == 1 && random() % 2); }
  bool copy() {
    const size_t before = copies.size();
    for (size_t n = 0; n < copies.size();)
      if (now(copying)) perform(copies[n]), copies.erase(copies.begin() + n);
      else n++;
    return copies.size() < before;
  }
  void multiply() {
    for (Block& block : blocks)
      for (auto& batches : block.batches)
        for (Batch& batch : batches) {  // in their order
          if (batch.done) continue;
          if (batch.committed < 128 || !now(multiplying)) break;
          perform(block, batch);
        }
  }
};

// One cluster of blocks, from its first thread's beginning to its last one's end.
inline void run(u32 first, u32 memory, u32 seed) {
  set_up(first, memory);
  std::mt19937 random(seed);
  Habits hardware{random};
  std::vector<u32> speeds(threads.size() / 32);
  u32 next = 0, pace = 1 + random() % 16, left = threads.size();
  front.begin(random);
  for (u32 round = 0; left && wrong.empty(); round++) {
    front.pass(round);
    if (round == next) {  // some warps stand still for a while
      next += 1 + random() % pace;
      for (u32& speed : speeds) speed = random() % 4 ? random() % 3 + 1 : 0;
    }
    bool moved = false;
    left = 0;
    const u32 begin = random() % threads.size();
    for (u32 n = 0; n < threads.size() && wrong.empty(); n++) {
      const u32 which = (begin + n) % threads.size();
      for (u32 i = 0; i < speeds[which / 32]; i++) moved |= advance(threads[which]);
      left += !threads[which].done;
    }
    moved |= hardware.copy();
    hardware.multiply();
    for (u32 n = 0; n < threads.size() && !moved; n++) moved = advance(threads[n]);
    if (moved || !left) continue;
    if (copies.empty() && front.ended) return fail("all threads wait");
    const u32 n = copies.empty() ? 0 : random() % copies.size();
    if (copies.empty()) front.end();
    else perform(copies[n]), copies.erase(copies.begin() + n);
  }
  front.end();
  if (!copies.empty()) fail("copies that nobody waited for");
}
}  // namespace host

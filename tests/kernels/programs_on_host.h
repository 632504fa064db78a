// Programs of 160 threads on a host: threads are coroutines, which run in an order drawn from a
// seed, and so many programs side by side as the seed says. Shared memory is kept twice: as threads see it, and as
// copies and products do, where a thread's store appears with its next fence. Copies land at once, at times, or not
// before nothing else can happen; each warp's part of a product reads its operands at a time of its own. The kernel
// in front may still run. What no kernel may do ends the run with a sentence. Values are bfloat16. Knows no kernel,
// but where its memory lies.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda_on_host.h"
#include "front_on_host.h"

typedef long long i64;
struct Map { const unsigned char* data; u64 dims[4], strides[4], box[4]; };  // strides in bytes, innermost first

namespace host {
constexpr u32 THREADS = 160, WARP = 32, COMPUTING = 128, STACK = 64 << 10;
constexpr u32 BARS = 64, BETWEEN = 512, TOLD = 640, DYNAMIC = 1040;  // places in a program's memory

struct Barrier { int arrivals, pending; long bytes; u32 phase; };
struct Product { float* sums; u64 a, b; int keep; bool turned; };
struct Batch {  // a warp's products between two commits
  std::vector<Product> of[WARP];
  u32 committed = 0;
  bool done = false;
};
struct Meeting { u32 here = 0, turn = 0; };
struct Store { u32 to; std::vector<unsigned char> bytes; };

struct Program {
  u32 number, running = THREADS;
  bool waited = false;  // for the kernel in front
  std::vector<unsigned char> memory, units;  // units: as copies and products see it
  std::map<u32, Barrier> barriers;
  Meeting warps[THREADS / WARP], computing, all;
  u64 told[THREADS / WARP][2][WARP];  // of shuffles
  std::vector<std::unique_ptr<Batch>> batches[COMPUTING / WARP];
};

struct Thread {
  u32 x;
  Program* program;
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(STACK);
  std::function<bool()> ready = [] { return true; };
  bool done = false;
  u32 batches = 0, shuffles = 0;
  std::vector<Product> open;
  std::vector<Store> unseen;
};

struct Copy { std::vector<unsigned char> bytes; u32 to, bar; Program* program; };

inline std::vector<std::unique_ptr<Program>> programs;
inline std::vector<std::unique_ptr<Thread>> threads;
inline std::vector<Copy> copies;
inline std::vector<Range> readable;
inline Thread* now;
inline ucontext_t scheduler;
inline u64 copied;  // bytes
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
inline void pause() {
  until([] { return true; });
}
inline void meet(Meeting& meeting, u32 count) {
  const u32 turn = meeting.turn;
  if (++meeting.here == count) meeting.here = 0, meeting.turn++;
  until([&meeting, turn] { return meeting.turn != turn; });
}
inline Meeting& warp() { return now->program->warps[now->x / WARP]; }

inline unsigned char* at(std::vector<unsigned char>& memory, u32 address, u32 size) {
  if (address < DYNAMIC || address + size > memory.size() || address % size) {
    fail("shared memory that is not there");
    address = DYNAMIC;
  }
  return memory.data() + address;
}
inline unsigned char* place(u32 where) { return now->program->memory.data() + where; }
template <class T> inline void store(u32 to, T value) {
  memcpy(at(now->program->memory, to, sizeof(T)), &value, sizeof(T));
  const auto* bytes = (const unsigned char*)&value;
  now->unseen.push_back({to, {bytes, bytes + sizeof(T)}});
}
inline void seen() {
  for (Store& one : now->unseen)
    memcpy(at(now->program->units, one.to, one.bytes.size()), one.bytes.data(), one.bytes.size());
  now->unseen.clear();
}

inline u32 swizzled(u32 address) { return address ^ ((address >> 7 & 7) << 4); }
inline float value(Program& program, u32 address) {
  unsigned short v;
  memcpy(&v, at(program.units, swizzled(address), 2), 2);
  const u32 bits = (u32)v << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

inline Barrier* barrier(Program& program, u32 bar) {
  if (!program.running) fail("a program that has ended is told of something");
  auto found = program.barriers.find(bar);
  if (found != program.barriers.end()) return &found->second;
  end("a barrier before it is there");
}
inline void count(Barrier* bar, int arrivals, long bytes) {
  bar->pending -= arrivals, bar->bytes += bytes;
  if (bar->pending < 0) fail("more arrivals than a barrier has");
  if (bar->pending == 0 && bar->bytes == 0) bar->phase ^= 1, bar->pending = bar->arrivals;
}

inline void perform(const Copy& copy) {
  if (!copy.program->running) return fail("a copy that nobody waited for");
  for (u32 n = 0; n < copy.bytes.size(); n += 16)
    for (auto* memory : {&copy.program->memory, &copy.program->units})
      memcpy(at(*memory, swizzled(copy.to + n), 16), copy.bytes.data() + n, 16);
  count(&copy.program->barriers.at(copy.bar), 0, -(long)copy.bytes.size());
}
inline void copy_box(u32 to, const Map* map, u32 bar, const int (&from)[4]) {
  if (to % 128 || map->box[0] * 2 != 128) end("a box that is not swizzled as it is read");
  barrier(*now->program, bar);
  Copy copy{{}, to, bar, now->program};
  int c[4];
  for (c[3] = from[3]; c[3] < from[3] + (int)map->box[3]; c[3]++)
    for (c[2] = from[2]; c[2] < from[2] + (int)map->box[2]; c[2]++)
      for (c[1] = from[1]; c[1] < from[1] + (int)map->box[1]; c[1]++) {
        bool inside = true;
        u64 offset = from[0] * 2;
        for (u32 n = 1; n < 4; n++) inside &= c[n] >= 0 && c[n] < (i64)map->dims[n], offset += c[n] * map->strides[n];
        if (!inside) end("a copy from outside of a tensor");
        const unsigned char* line = map->data + offset;
        copy.bytes.insert(copy.bytes.end(), line, line + 128);
      }
  copied += copy.bytes.size(), front.copied += front.ended ? 0 : copy.bytes.size();
  copies.push_back(copy);
}

inline void multiply(Program& program, u32 warp, Batch& batch, u32 n) {
  const Product first = batch.of[0][n];
  const u32 a = (first.a & 0x3FFF) << 4, b = (first.b & 0x3FFF) << 4, pitch = (first.a >> 32 & 0x3FFF) << 4;
  float x[16][16], w[8][16];
  for (u32 row = 0; row < 16; row++)
    for (u32 k = 0; k < 16; k++) {
      const u32 line = first.turned ? k : warp * 16 + row, column = first.turned ? warp * 16 + row : k;
      x[row][k] = value(program, a + line / 8 * pitch + line % 8 * 128 + column * 2);
    }
  for (u32 line = 0; line < 8; line++)
    for (u32 k = 0; k < 16; k++) w[line][k] = value(program, b + line * 128 + k * 2);
  for (u32 lane = 0; lane < WARP; lane++) {
    const Product& own = batch.of[lane][n];
    if (own.a != first.a || own.b != first.b || own.keep != first.keep) fail("threads that multiply different things");
    for (u32 i = 0; i < 4; i++) {
      float sum = own.keep ? own.sums[i] : 0;
      for (u32 k = 0; k < 16; k++) sum += x[lane / 4 + i / 2 * 8][k] * w[lane % 4 * 2 + i % 2][k];
      own.sums[i] = sum;
    }
  }
}
inline void perform(Program& program, u32 warp, Batch& batch) {
  if (batch.done) return;
  batch.done = true;
  for (u32 n = 0; n < batch.of[0].size(); n++) multiply(program, warp, batch, n);
}

inline void body() {
  kernel();
  now->done = true;
  if (!--now->program->running && !now->program->waited && !front.plain()) fail("a program ends without the wait");
  leave();
}
inline bool advance(Thread& thread) {
  if (thread.done || !thread.ready()) return false;
  now = &thread;
  swapcontext(&scheduler, &thread.context);
  return true;
}

inline void set_up(u32 grid, u32 memory) {
  copies.clear(), programs.clear(), threads.clear(), copied = 0;
  for (u32 number = 0; number < grid; number++) {
    programs.push_back(std::make_unique<Program>());
    Program* program = programs.back().get();
    program->number = number;
    program->memory.assign(DYNAMIC + memory, 0xFF), program->units = program->memory;  // nothing that is a number
    for (u32 x = 0; x < THREADS; x++) {
      threads.push_back(std::make_unique<Thread>());
      Thread& thread = *threads.back();
      thread.x = x, thread.program = program;
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.data(), thread.context.uc_stack.ss_size = STACK;
      thread.context.uc_link = nullptr;
      makecontext(&thread.context, body, 0);
    }
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
    for (auto& program : programs)
      for (u32 warp = 0; warp < COMPUTING / WARP; warp++)
        for (auto& batch : program->batches[warp]) {  // in their order
          if (batch->done) continue;
          if (batch->committed < WARP || !now(multiplying)) break;
          perform(*program, warp, *batch);
        }
  }
};

// Which programs run: at most `room` of them, the next one when one has ended.
inline u32 begun(u32 room) {
  u32 ended = 0;
  for (auto& program : programs) ended += !program->running;
  return std::min<u32>(programs.size(), room + ended);
}

inline void run(u32 grid, u32 memory, u32 seed) {
  set_up(grid, memory);
  std::mt19937 random(seed);
  Habits hardware{random};
  std::vector<u32> speeds(threads.size() / WARP);
  u32 next = 0, pace = 1 + random() % 16, room = 1 + random() % grid, left = threads.size();
  front.begin(random);
  for (u32 round = 0; left && wrong.empty(); round++) {
    front.pass(round);
    if (round == next) {  // some warps stand still for a while
      next += 1 + random() % pace;
      for (u32& speed : speeds) speed = random() % 4 ? random() % 3 + 1 : 0;
    }
    const u32 count = begun(room) * THREADS, begin = random() % count;
    bool moved = false;
    left = threads.size() - count;
    for (u32 n = 0; n < count && wrong.empty(); n++) {
      const u32 which = (begin + n) % count;
      for (u32 i = 0; i < speeds[which / WARP] && wrong.empty(); i++) moved |= advance(*threads[which]);
      left += !threads[which]->done;
    }
    moved |= hardware.copy();
    hardware.multiply();
    for (u32 n = 0; n < count && !moved; n++) moved = advance(*threads[n]);
    if (moved || !left || !wrong.empty()) continue;
    if (copies.empty() && front.ended) return fail("all threads wait");
    const u32 n = copies.empty() ? 0 : random() % copies.size();
    if (copies.empty()) front.end();
    else perform(copies[n]), copies.erase(copies.begin() + n);
  }
  front.end();
  if (!copies.empty()) fail("a copy that nobody waited for");
}
}  // namespace host

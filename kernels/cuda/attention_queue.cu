// Decode attention of many requests: programs that stay take (request, KV head) after (request, KV head) from a
// queue. One warp of each brings keys and values, whatever request they belong to; four others compute behind it.
// Defined in front: UNITS, blocks of shared memory in the ring; KV_HEADS; GROUP, query heads of one, up to 8; PAGE,
// tokens of a page. Heads of 128. What is copied at once: 8 keys (or values), 256 bytes each.
//
// The matrix units' rows are 64 keys (of the product with values: 64 columns of them), their columns the query
// heads of the group, filled up to 8 with zeros. Lines of 128 bytes are half of a key; 8 of them follow one another,
// then the other halves of these 8 keys: so each half is a matrix whose groups of 8 lines lie 2,048 bytes apart.
// Online softmax: Milakov & Gimelshein 2018. Legend: reach, keys of a request with that of the new token.

constexpr u32 KEYS = 64, EIGHT = 2048, UNIT = KEYS / 8 * EIGHT;  // bytes of 8 keys, and of a block
constexpr u32 HEAD = 128, QUERIES = 2048, HALF = 1024;           // of the queries of a request: bytes, and of a half
constexpr u32 WEIGHTS = 1024, RESULTS = GROUP * HEAD * 2;        // of a block's weights, and of a request's results
constexpr u32 THREADS = 128, WARPS = 4, PRODUCER = WARPS;
constexpr float LOW = -1e30f;  // finite: below any score, and a difference of two is a number

typedef long long i64;
__device__ __forceinline__ int read(const int* p) {  // not from the first-level cache
  int v;
  asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ i64 read(const i64* p) {
  i64 v;
  asm volatile("ld.global.cg.s64 %0, [%1];" : "=l"(v) : "l"(p));
  return v;
}
// How many programs ended before this one, all they did to the queue done.
__device__ __forceinline__ u32 ended_before(u32* count) {
  u32 v;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(count) : "memory");
  return v;
}
__device__ __forceinline__ void store(u32 to, unsigned short v) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(v) : "memory");
}
__device__ __forceinline__ void store_zeros(u32 to) {  // 16 bytes
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, 128;" ::: "memory"); }  // the computing warps
__device__ __forceinline__ void seen_by_units() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// acc [64, 8] += a^T b, a [16, 64] with its rows in lines (values), b as in `mma`.
__device__ __forceinline__ void mma_turned(float (&acc)[4], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE " {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 1, 0;"
               : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3]) : "l"(a), "l"(b));
}

struct Ring {  // of blocks: where the next one lies, and how often the ring was gone round
  u32 full, empty, blocks, unit, phase;
  __device__ __forceinline__ void next() {
    if (++unit == UNITS) unit = 0, phase ^= 1;
  }
  __device__ __forceinline__ u32 place() const { return blocks + unit * UNIT; }
};
struct Asked {  // what the producer tells of a request and KV head: queries, a barrier for them, reach (0: the end)
  u32 queries, full, empty;
  int (*told)[2];
};
struct Batch {  // as engine.batch has it
  const int* table;
  const i64* rows;
  const int* lens;
  int items, table_row;
};
struct Item {  // a place in the queue; page: of the keys that this lane copies next
  int at, length, page;
  i64 row;
  __device__ __forceinline__ bool take(int place, const Batch& batch, u32 lane) {
    at = place;
    if (at >= batch.items) return false;
    length = read(batch.lens + at / KV_HEADS);
    row = read(batch.rows + at / KV_HEADS) * batch.table_row;
    if ((int)(lane % 8 * 8) <= length) page = read(batch.table + row + lane % 8 * 8 / PAGE);  // a row may have no more
    return true;
  }
};

__device__ __forceinline__ void produce(Ring ring, Asked asked, const Map* q, const Map* keys, const Map* values, const Batch& batch, u32* queue) {
  const u32 lane = threadIdx.x & 31;
  Item item, following;
  bool more = item.take(blockIdx.x, batch, lane);
  for (u32 turn = 0;; turn++) {
    const u32 slot = turn & 1;
    if (turn >= 2) barrier_wait(asked.empty + 8 * slot, ((turn >> 1) - 1) & 1);
    if (!more) {
      if (lane == 0) asked.told[slot][1] = 0, barrier_arrive(asked.full + 8 * slot);
      return;
    }
    const int request = item.at / KV_HEADS, head = item.at % KV_HEADS, reach = item.length + 1;
    const int blocks = (reach + KEYS - 1) / KEYS;
    const int ahead = turn ? 0 : min(item.length / (int)KEYS, (int)UNITS / 2);  // blocks with no new token in them
    int place = 0;
    more = false;
    for (int block = 0; block < blocks; block++) {
      if (block == ahead) {
        if (turn == 0) front_has_ended();
        if (lane == 0) {
          asked.told[slot][0] = item.at;
          asked.told[slot][1] = reach;
          barrier_expect(asked.full + 8 * slot, 2 * GROUP * 128);
          for (u32 half = 0; half < 2; half++)
            tma_load(asked.queries + slot * QUERIES + half * HALF, q, asked.full + 8 * slot, READ, 0, head * GROUP, half, request);
          place = atomicAdd(queue, 1) + gridDim.x;
        }
      }
      const int page = item.page, eights = min(8, (reach - block * (int)KEYS + 7) / 8);
      if (block + 1 < blocks) {  // pages are asked for while the block before them is copied
        const int position = (block + 1) * KEYS + lane % 8 * 8;
        if (position < reach) item.page = read(batch.table + item.row + position / PAGE);
      } else {
        more = following.take(__shfl_sync(~0u, place, 0), batch, lane);
      }
      const u32 eight = (u32)page * (PAGE / 8) + (block * KEYS + lane % 8 * 8) % PAGE / 8;
      for (u32 side = 0; side < 2; side++, ring.next()) {
        const u32 bar = ring.full + 8 * ring.unit;
        barrier_wait(ring.empty + 8 * ring.unit, ring.phase ^ 1);
        if (lane == 0) barrier_expect(bar, eights * EIGHT);
        __syncwarp();
        if ((int)lane < eights) tma_load(ring.place() + lane * EIGHT, side ? values : keys, bar, READ, 0, 0, head * 2, eight);
      }
    }
    item = following;
  }
}

// Of `rows` sums or tops, one for each thread and column: those of all warps, by way of shared memory.
template <bool SUM> __device__ __forceinline__ void across(float& a, float& b, float (*between)[8]) {
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, column = lane % 4 * 2;
#pragma unroll
  for (u32 far = 4; far < 32; far *= 2) {
    const float x = __shfl_xor_sync(~0u, a, far), y = __shfl_xor_sync(~0u, b, far);
    a = SUM ? a + x : fmaxf(a, x);
    b = SUM ? b + y : fmaxf(b, y);
  }
  if (lane < 4) between[warp][column] = a, between[warp][column + 1] = b;
  meet();
  a = between[0][column], b = between[0][column + 1];
#pragma unroll
  for (u32 other = 1; other < WARPS; other++) {
    a = SUM ? a + between[other][column] : fmaxf(a, between[other][column]);
    b = SUM ? b + between[other][column + 1] : fmaxf(b, between[other][column + 1]);
  }
}

__device__ __forceinline__ void consume(Ring ring, Asked asked, u32 weights, unsigned short* out, float scale, float (*between)[8]) {
  const u32 lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);
  const u32 column = lane % 4 * 2, key = warp * 16 + lane / 4;  // of the first of a thread's four scores
  for (u32 turn = 0;; turn++) {
    const u32 slot = turn & 1, queries = asked.queries + slot * QUERIES;
    barrier_wait(asked.full + 8 * slot, (turn >> 1) & 1);
    const int at = __shfl_sync(~0u, asked.told[slot][0], 0), reach = __shfl_sync(~0u, asked.told[slot][1], 0);
    if (reach == 0) return;
    float acc[2][4] = {}, total[2] = {0, 0}, top[2] = {LOW, LOW};
    for (int block = 0; block < (reach + (int)KEYS - 1) / (int)KEYS; block++) {
      const int live = reach - block * KEYS;
      float score[4] = {};
      barrier_wait(ring.full + 8 * ring.unit, ring.phase);
      settled(score);
      products_begin();
#pragma unroll
      for (u32 step = 0; step < HEAD / 16; step++) {
        const u32 here = step / 4 * HALF + step % 4 * 32;
        mma(score, descriptor(ring.place() + here, EIGHT), descriptor(queries + here, HALF), step != 0);
      }
      products_commit();
      products_wait<0>();
      if (lane == 0) barrier_arrive(ring.empty + 8 * ring.unit);
      ring.next();
#pragma unroll
      for (u32 i = 0; i < 4; i++) score[i] = (int)(key + i / 2 * 8) < live ? score[i] * scale : __int_as_float(0xff800000);
      float high[2] = {fmaxf(score[0], score[2]), fmaxf(score[1], score[3])}, shrink[2];
      across<false>(high[0], high[1], between);
#pragma unroll
      for (u32 i = 0; i < 2; i++) {
        high[i] = fmaxf(high[i], top[i]);
        shrink[i] = exp2_of(top[i] - high[i]);
        top[i] = high[i];
        score[i] = exp2_of(score[i] - high[i]);
        score[i + 2] = exp2_of(score[i + 2] - high[i]);
        total[i] = total[i] * shrink[i] + score[i] + score[i + 2];
      }
#pragma unroll
      for (u32 i = 0; i < 4; i++) {  // a line for each query head, swizzled as TMA would
        const u32 line = column + i % 2, place = (key + i / 2 * 8) * 2;
        store(weights + line * 128 + (place ^ line << 4), narrow(score[i]));
      }
      const u32 values = ring.place();
      barrier_wait(ring.full + 8 * ring.unit, ring.phase);
      for (u32 i = live * 16 + threadIdx.x; live < (int)KEYS && i < KEYS * 16; i += THREADS) {  // may hold no numbers
        const u32 line = i / 128 * EIGHT + i % 16 / 8 * HALF + i / 16 % 8 * 128 + i % 8 * 16;
        store_zeros(values + line);
      }
      seen_by_units();
      meet();
#pragma unroll
      for (u32 i = 0; i < 8; i++) acc[i / 4][i % 4] *= shrink[i % 2];
      settled(acc[0]), settled(acc[1]);
      products_begin();
#pragma unroll
      for (u32 i = 0; i < 8; i++)
        mma_turned(acc[i / 4], descriptor(values + i % 4 * 2 * EIGHT + i / 4 * HALF, EIGHT), descriptor(weights + i % 4 * 32, HALF));
      products_commit();
      products_wait<0>();
      if (lane == 0) barrier_arrive(ring.empty + 8 * ring.unit);
      ring.next();
    }
    if (lane == 0) barrier_arrive(asked.empty + 8 * slot);
    across<true>(total[0], total[1], between);
    const u32 results = weights + WEIGHTS, piece = threadIdx.x * 16;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      const u32 head = column + i % 2, place = i / 4 * 64 + key + i % 4 / 2 * 8;
      store(results + (head * HEAD + place) * 2, narrow(acc[i / 4][i % 4] / total[i % 2]));
    }
    meet();
    if (piece < RESULTS)  // whole pieces, which stay in the second-level cache: memory that writes as well reads slower
      global_store16((unsigned char*)out + (i64)at * RESULTS + piece, shared_load16(results + piece), READ_OFTEN);
  }
}

// Grid: as many programs as run at once, or as there are items if fewer. queue: how many were taken beyond the
// first of each program, and how many programs have ended; zero between launches. scale includes log2(e).
extern "C" __global__ void __launch_bounds__(160)
attention_queue(const __grid_constant__ Map q, const __grid_constant__ Map keys, const __grid_constant__ Map values, unsigned short* out,
                const int* table, const i64* rows, const int* lens, u32* queue, int items, int table_row, float scale) {
  extern __shared__ unsigned char memory[];
  __shared__ alignas(8) u64 bars[2 * UNITS + 4];
  __shared__ float between[WARPS][8];
  __shared__ int told[2][2];
  const u32 blocks = (shared_address(memory) + 1023) & ~1023u, full = shared_address(bars);
  const u32 queries = blocks + UNITS * UNIT, weights = queries + 2 * QUERIES, more = full + 16 * UNITS;
  const Ring ring = {full, full + 8 * UNITS, blocks, 0, 0};
  const Asked asked = {queries, more, more + 16, told};
  if (threadIdx.x == 0) {
    for (u32 unit = 0; unit < UNITS; unit++) barrier_init(ring.full + 8 * unit, 1), barrier_init(ring.empty + 8 * unit, WARPS);
    for (u32 slot = 0; slot < 2; slot++) barrier_init(asked.full + 8 * slot, 1), barrier_init(asked.empty + 8 * slot, WARPS);
    barriers_ready();
  }
  for (u32 i = threadIdx.x; i < 2 * QUERIES / 4; i += THREADS + 32)  // query heads that there are none of stay zero
    shared_store(queries + 4 * i, 0);
  seen_by_units();
  __syncthreads();
  const u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the same for all of it, as the compiler then knows
  if (warp != PRODUCER) {
    front_has_ended();
    consume(ring, asked, weights, out, scale, between);
  } else {
    produce(ring, asked, &q, &keys, &values, {table, rows, lens, items, table_row}, queue);
    if (threadIdx.x % 32 == 0 && ended_before(queue + 1) == gridDim.x - 1) queue[0] = 0, queue[1] = 0;
  }
}

// What products out of stages share. Included behind STAGES, their number; STAGE_BYTES, X_BYTES: of a stage, and of the
// tokens that it begins with; EIGHTS: lines that a warp stores of a token, by eights, a multiple of 4.
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

// Where 8 lines of a token are in a warp's 16 rows of shared memory: neighbours in different banks.
__device__ __forceinline__ u32 place(u32 row, u32 eight) {
  return (row * EIGHTS + (eight ^ (row & (EIGHTS % 8 ? 3 : 7)))) * 16;
}

// A warp's 16 tokens from `token` on, of lines from `line` on: whole rows side by side, eight lines a store.
__device__ __forceinline__ void store(u16* out, u32 room, u32 token, u32 tokens, u32 line, u32 lines) {
  for (u32 n = threadIdx.x & 31; n < 16 * EIGHTS; n += 32) {
    const u32 row = n / EIGHTS, eight = n % EIGHTS, at = line + eight * 8;
    const uint4 v = shared_load16(room + place(row, eight));
    if (token + row < tokens && at < lines) *(uint4*)(out + (u64)(token + row) * lines + at) = v;
  }
}

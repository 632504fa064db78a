// CUDA's own words and 16-bit values, for kernels that run on a host. Included behind the standard library's headers,
// for which these words may mean something. Values are bfloat16. Knows neither threads nor memory.
#pragma once
#include <cmath>
#include <cstring>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __cluster_dims__(...)
#define __launch_bounds__(...)
#define threadIdx (*host::now)

typedef unsigned u32;
typedef unsigned long long u64;
struct uint4 { u32 x, y, z, w; };
struct Index { u32 x; };  // of a block, or how many there are

inline unsigned short narrow(float v) {
  u32 bits;
  memcpy(&bits, &v, 4);
  return std::isnan(v) ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

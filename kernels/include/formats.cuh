// Number formats: T, the type of the elements, chosen by -DFLOAT16 or -DBFLOAT16 (float without
// either), and T2, a pair of neighbouring elements. Conversions round to nearest even.
//
// In the header of a kernel, `size` is the number of bytes in an element, and `row` that in a row
// (cols * size). `a when condition | b` is a if the condition is true, else b. A division rounds
// down, ceil_div up, power_of_two up to a power of two; a condition is 1 or 0.
#pragma once

#if defined(FLOAT16)
#include <cuda_fp16.h>
using T = __half;
using T2 = __half2;
__device__ __forceinline__ float to_float(T v) { return __half2float(v); }
__device__ __forceinline__ T to_T(float v) { return __float2half_rn(v); }
__device__ __forceinline__ float2 to_float2(T2 v) { return __half22float2(v); }
__device__ __forceinline__ T2 to_T2(float2 v) { return __float22half2_rn(v); }
__device__ __forceinline__ T2 max2(T2 a, T2 b) { return __hmax2(a, b); }
#elif defined(BFLOAT16)
#include <cuda_bf16.h>
using T = __nv_bfloat16;
using T2 = __nv_bfloat162;
__device__ __forceinline__ float to_float(T v) { return __bfloat162float(v); }
__device__ __forceinline__ T to_T(float v) { return __float2bfloat16_rn(v); }
__device__ __forceinline__ float2 to_float2(T2 v) { return __bfloat1622float2(v); }
__device__ __forceinline__ T2 to_T2(float2 v) { return __float22bfloat162_rn(v); }
__device__ __forceinline__ T2 max2(T2 a, T2 b) { return __hmax2(a, b); }
#else
using T = float;
using T2 = float2;
__device__ __forceinline__ float to_float(T v) { return v; }
__device__ __forceinline__ T to_T(float v) { return v; }
__device__ __forceinline__ float2 to_float2(T2 v) { return v; }
__device__ __forceinline__ T2 to_T2(float2 v) { return v; }
__device__ __forceinline__ T2 max2(T2 a, T2 b)
{
    return make_float2(fmaxf(a.x, b.x), fmaxf(a.y, b.y));
}
#endif

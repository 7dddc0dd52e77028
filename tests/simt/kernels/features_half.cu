// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: 16-bit floating point.
// See tests/simt/features.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Eight values an access, the arithmetic in fp32.
extern "C" __global__ void eight_halves(const __half* x, __half* y, float factor, int n)
{
    const int first = 8 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (first >= n) return;
    uint4 packed = *reinterpret_cast<const uint4*>(x + first);
    __half2* pairs = reinterpret_cast<__half2*>(&packed);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        float2 v = __half22float2(pairs[j]);
        pairs[j] = __floats2half2_rn(v.y * factor, v.x * factor + 1.0f);
    }
    *reinterpret_cast<uint4*>(y + first) = packed;
}

extern "C" __global__ void eight_bfloats(const __nv_bfloat16* x, __nv_bfloat16* y, float factor,
                                         int n)
{
    const int first = 8 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (first >= n) return;
    uint4 packed = *reinterpret_cast<const uint4*>(x + first);
    __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&packed);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        float2 v = __bfloat1622float2(pairs[j]);
        pairs[j] = __floats2bfloat162_rn(v.y * factor, v.x * factor + 1.0f);
    }
    *reinterpret_cast<uint4*>(y + first) = packed;
}

// Sums of small whole numbers, which are exact in 16 bits: of pairs, and of their second halves.
extern "C" __global__ void f16_sums(const __half2* x, __half2* pairs, __half* ones, int groups,
                                    int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(pairs + i % groups, x[i]);
    atomicAdd(ones + i % groups, __high2half(x[i]));
}

extern "C" __global__ void bf16_sums(const __nv_bfloat162* x, __nv_bfloat162* pairs,
                                     __nv_bfloat16* ones, int groups, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(pairs + i % groups, x[i]);
    atomicAdd(ones + i % groups, __high2bfloat16(x[i]));
}

// The arithmetic itself in 16 bits: every operation rounds.
extern "C" __global__ void half_arithmetic(const __half2* x, __half2* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const __half2 other = __lowhigh2highlow(x[i]);
    __half2 v = __hadd2_rn(__hmul2_rn(x[i], other), x[i]);
    v = __hmax2(__hfma2(v, other, x[i]), __hneg2(x[i]));
    if (__hgt(__low2half(v), __high2half(v))) v = __hsub2_rn(v, other);
    y[i] = v;
}

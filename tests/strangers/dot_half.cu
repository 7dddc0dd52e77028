// SPDX-License-Identifier: MIT
// Dot product of two half-precision vectors, two elements at a time. Sums are kept in single
// precision: within a thread, then a warp by shuffles, a block, and the grid by an atomic.

#include <cuda_fp16.h>

constexpr unsigned int FULL_MASK = 0xffffffffu;

__device__ float sum_warp(float value)
{
    for (int offset = warpSize / 2; offset > 0; offset /= 2)
        value += __shfl_down_sync(FULL_MASK, value, offset);
    return value;
}

// blockDim.x is a multiple of 32; *result is zero before the launch.
extern "C" __global__ void dot_half(const __half* __restrict__ a, const __half* __restrict__ b,
                                    float* result, int n)
{
    __shared__ float warp_sums[32];
    const __half2* a2 = reinterpret_cast<const __half2*>(a);
    const __half2* b2 = reinterpret_cast<const __half2*>(b);
    const int first = blockIdx.x * blockDim.x + threadIdx.x;

    float sum = 0.0f;
    for (int i = first; i < n / 2; i += gridDim.x * blockDim.x) {
        const float2 p = __half22float2(a2[i]);
        const float2 q = __half22float2(b2[i]);
        sum = fmaf(p.x, q.x, sum);
        sum = fmaf(p.y, q.y, sum);
    }
    if (first == 0 && n % 2 == 1)  // the last of an odd number of elements
        sum += __half2float(a[n - 1]) * __half2float(b[n - 1]);

    const int lane = threadIdx.x % warpSize;
    const int warp = threadIdx.x / warpSize;
    sum = sum_warp(sum);
    if (lane == 0) warp_sums[warp] = sum;
    __syncthreads();  // all warps have stored their sums
    if (warp == 0) {
        sum = sum_warp(lane < blockDim.x / warpSize ? warp_sums[lane] : 0.0f);
        if (lane == 0) atomicAdd(result, sum);
    }
}

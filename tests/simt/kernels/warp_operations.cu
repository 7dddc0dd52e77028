// SPDX-License-Identifier: MIT
// Shuffles and votes whose mask does not name the lanes that execute them.

#include "twins.cuh"

extern "C" __global__ void returned(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 >= 16) return;
    v += __shfl_xor_sync(BUG(0xffffffff) FIX(0x0000ffff), v, 1);  // <- lane missing from a warp operation
    y[i] = v;
}

extern "C" __global__ void diverged(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 16)
        v += __shfl_xor_sync(BUG(0xffffffff) FIX(0x0000ffff), v, 1);  // <- lane missing from a warp operation
    else
        v *= 2.0f;
    y[i] = v;
}

extern "C" __global__ void both_sides(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 16)
        v += __shfl_xor_sync(BUG(0xffffffff) FIX(0x0000ffff), v, 1);  // <- lane missing from a warp operation
    else
        v -= __shfl_xor_sync(BUG(0xffffffff) FIX(0xffff0000), v, 2);  // <- lane missing from a warp operation
    y[i] = v;
}

extern "C" __global__ void outside(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 16)
        v += __shfl_xor_sync(0x0000ffff, v, BUG(16) FIX(8));  // <- shuffle from a lane that takes no part
    y[i] = v;
}

extern "C" __global__ void one_lane_outside(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 31)
        v += __shfl_down_sync(0x7fffffff, v, 1 FIX(, 1));  // <- shuffle from a lane that takes no part
    y[i] = v;
}

extern "C" __global__ void ballot(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    unsigned votes = 0;
    BUG(if (x[i] > n))
        votes = __ballot_sync(0xffffffff, x[i] > 2 * n);  // <- lane missing from a warp operation
    y[i] = votes;
}

extern "C" __global__ void syncwarp(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    y[i] = x[i];
    if (t % 2) __syncwarp(FIX(0xaaaaaaaa));  // <- lane missing from a warp operation
    y[i] += 1;
}

extern "C" __global__ void leaving_a_loop(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    for (int j = 0; j < BUG(t) FIX(n) % 4; ++j)
        v += __shfl_xor_sync(0xffffffff, v, 4);  // <- lane missing from a warp operation
    y[i] = v;
}

extern "C" __global__ void own_mask(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    v += __shfl_xor_sync(BUG(0x0000ffff) FIX(0xffffffff), v, 1);  // <- lane missing from its own mask
    y[i] = v;
}

extern "C" __global__ void short_warp(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    v += __shfl_xor_sync(0xffffffff, v, BUG(16) FIX(8));  // <- shuffle from a lane that takes no part
    y[i] = v;
}

extern "C" __global__ void predicate_only(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    y[i] = x[i];
    if (t == 5) y[i] = __any_sync(BUG(0xffffffff) FIX(1 << 5), x[i] > n);  // <- lane missing from a warp operation
}

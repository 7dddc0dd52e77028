// SPDX-License-Identifier: MIT
// Threads of a block touch the same bytes of shared memory with no barrier between.

#include "twins.cuh"

extern "C" __global__ void after_fill(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    FIX(__syncthreads();)
    y[i] = s[63 - t];  // <- race on shared memory
}

extern "C" __global__ void inside_tree(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    for (int half = 32; half > n; half /= 2) {
        if (t < half) s[t] += s[t + half];  // <- race on shared memory
        FIX(__syncthreads();)
    }
    if (t == 0) y[blockIdx.x] = s[0];
}

extern "C" __global__ void before_reuse(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    const float v = s[63 - t];
    FIX(__syncthreads();)
    s[t] = 2.0f * v;  // <- race on shared memory
    __syncthreads();
    y[i] = s[63 - t];
}

extern "C" __global__ void between_reductions(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) s[t] += s[t + half];
        __syncthreads();
    }
    const float sum = s[0];
    FIX(__syncthreads();)
    s[t] = x[i] / sum;  // <- race on shared memory
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) s[t] += s[t + half];
        __syncthreads();
    }
    y[i] = s[0] + sum;
}

extern "C" __global__ void after_broadcast(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float scale[2];
    if (t == 0) scale[n & 1] = x[i];
    FIX(__syncthreads();)
    y[i] = x[i] * scale[n + t / 64 & 1];  // <- race on shared memory
}

extern "C" __global__ void one_place(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float last;
    FIX(if (t == 63)) last = x[i];  // <- race on shared memory
    __syncthreads();
    y[i] = last;
}

extern "C" __global__ void two_warps(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = 0.0f;
    __syncthreads();
    if (t >= 32) s[t - 32] = x[i];
    FIX(__syncthreads();)
    if (t < 32) s[t] = x[i];  // <- race on shared memory
    __syncthreads();
    y[i] = s[t];
}

extern "C" __global__ void neighbour(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    BUG(if (t < 63) s[t] += s[t + 1];)  // <- race on shared memory
    FIX(const float v = t < 63 ? s[t + 1] : 0.0f;)
    FIX(__syncthreads();)
    FIX(s[t] += v;)
    __syncthreads();
    y[i] = s[t];
}

extern "C" __global__ void within_warp(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    FIX(__syncwarp();)
    y[i] = s[t ^ 1];  // <- race on shared memory
}

extern "C" __global__ void warp_for_block(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    BUG(__syncwarp();)
    FIX(__syncthreads();)
    y[i] = s[63 - t];  // <- race on shared memory
}

extern "C" __global__ void second_block(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    BUG(if (blockIdx.x != 1)) __syncthreads();
    y[i] = s[63 - t];  // <- race on shared memory
}

extern "C" __global__ void transpose(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float tile[8][9];
    tile[threadIdx.y][t] = x[8 * threadIdx.y + t];
    FIX(__syncthreads();)
    y[8 * threadIdx.y + t] = tile[t][threadIdx.y];  // <- race on shared memory
}

extern "C" __global__ void bytes(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ char s[64];
    s[t] = (char)x[i];
    FIX(__syncthreads();)
    y[i] = s[t ^ 1];  // <- race on shared memory
}

extern "C" __global__ void own_bytes(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ char s[64];
    s[t] = (char)x[i];
    y[i] = BUG(*(int*)(s + (t & ~3))) FIX(s[t] * 2.0f);  // <- race on shared memory
}

extern "C" __global__ void one_counter(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ int count;
    if (t == 0) count = n;
    __syncwarp();
    const int before = count;
    FIX(__syncwarp();)
    if (t == 0) count += 1 + (int)x[0];  // <- race on shared memory
    __syncwarp();
    y[i] = before + count;
}

extern "C" __global__ void vectors(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float4 s[16];
    reinterpret_cast<float*>(s)[t] = x[i];
    FIX(__syncthreads();)
    const float4 v = s[t / 4];  // <- race on shared memory
    y[i] = v.x + v.y + v.z + v.w;
}

extern "C" __global__ void any_pointer(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    FIX(__syncthreads();)
    const float* from = t % 2 ? s + 63 - t : x + i;
    y[i] = *from;  // <- race on shared memory
}

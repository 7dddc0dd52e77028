// SPDX-License-Identifier: MIT
// Accesses outside of the block's shared memory, off their alignment, or before any store.

#include "twins.cuh"

extern __shared__ float dynamic[];

extern "C" __global__ void read_past(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    y[i] = s[BUG(t + 1) FIX((t + 1) % 64)];  // <- out-of-bounds shared load
}

extern "C" __global__ void read_before(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    y[i] = s[BUG(t - 1) FIX((t + 63) % 64)];  // <- out-of-bounds shared load
}

extern "C" __global__ void store_past(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[BUG(t + 1) FIX((t + 1) % 64)] = x[i];  // <- out-of-bounds shared store
    __syncthreads();
    y[i] = t ? s[t] : 0.0f;
}

extern "C" __global__ void far_away(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    y[i] = s[t ^ BUG(n) FIX((n >> 28))];  // <- out-of-bounds shared load
}

extern "C" __global__ void too_small(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    dynamic[t] = x[i];  // <- out-of-bounds shared store
    __syncthreads();
    y[i] = dynamic[63 - t];  // <- out-of-bounds shared load
}

extern "C" __global__ void misaligned_load(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float4 s[17];
    float* f = reinterpret_cast<float*>(s);
    f[t] = x[i];
    if (t < 4) f[64 + t] = 0.0f;
    __syncthreads();
    const float4 v = *reinterpret_cast<float4*>(f + t / 4 * 4 BUG(+ 1));  // <- misaligned shared load
    y[i] = v.x + v.w;
}

extern "C" __global__ void misaligned_store(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float4 s[65];
    float* f = reinterpret_cast<float*>(s);
    *reinterpret_cast<float2*>(f + 2 * t + n % 2 FIX(* 2)) = make_float2(x[i], 1.0f);  // <- misaligned shared store
    y[i] = 0.0f;
}

extern "C" __global__ void partial_fill(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    if (t < BUG(40) FIX(64)) s[t] = x[i];
    __syncthreads();
    y[i] = s[63 - t];  // <- read of unwritten shared memory
}

extern "C" __global__ void no_fill(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    if (n BUG(<) FIX(>) 0) s[t] = x[i];
    __syncthreads();
    y[i] = s[t];  // <- read of unwritten shared memory
}

extern "C" __global__ void half_a_vector(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float2 s[64];
    BUG(s[t].x = x[i];)
    FIX(s[t] = make_float2(x[i], 1.0f);)
    const float2 v = s[t];  // <- read of unwritten shared memory
    y[i] = v.x + v.y;
}

extern "C" __global__ void any_pointer_past(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    const float* from = t % 2 ? s + t BUG(+) FIX(-) 1 : x + i;
    y[i] = *from;  // <- out-of-bounds shared load
}

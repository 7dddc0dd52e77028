// SPDX-License-Identifier: MIT
// Barriers that not all threads reach.

#include "twins.cuh"

extern "C" __global__ void in_a_branch(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    if (t < 32) {
        s[t] += 1.0f;
        BUG(__syncthreads();)  // <- barrier in divergent code
    }
    __syncthreads();
    y[i] = s[t];
}

extern "C" __global__ void in_both_branches(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    if (BUG(t < 32) FIX(blockIdx.x)) {
        s[t] = x[i];
        __syncthreads();  // <- barrier in divergent code
    } else {
        s[t] = -x[i];
        __syncthreads();
    }
    y[i] = s[63 - t];
}

extern "C" __global__ void uneven_loops(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    for (int j = 0; j <= BUG(t / 32 *) n; ++j) {
        s[t] += x[j];
        __syncthreads();  // <- barrier in divergent code
    }
    __syncthreads();
    y[i] = s[t];
}

extern "C" __global__ void early_return(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    BUG(if (t >= n) return;)
    __syncthreads();  // <- barrier after an early return
    BUG(y[i] = s[n - 1 - t];)
    FIX(if (t < n) y[i] = s[n - 1 - t];)
}

extern "C" __global__ void waits_for_more(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    y[i] = -x[i];
    asm volatile("bar.sync 1, " BUG("96") FIX("64") ";" ::: "memory");  // <- barrier that never completes
    y[i] = x[i];
}

extern "C" __global__ void waits_elsewhere(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    y[i] = -x[i];
    if (t < 32)
        asm volatile("bar.sync 1, 64;" ::: "memory");  // <- barrier that never completes
    else
        asm volatile("bar.sync " BUG("2") FIX("1") ", 64;" ::: "memory");  // <- barrier that never completes
    y[i] = x[i];
}

extern "C" __global__ void waits_for_fewer(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    asm volatile("bar.sync 1, " BUG("32") FIX("64") ";" ::: "memory");  // <- barrier for fewer threads
    y[i] = s[t];
}

extern "C" __global__ void endless(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ volatile int done;
    if (t == 0) done = 0;
    __syncthreads();
    do {
        __syncthreads();
        if (t == 0 && n BUG(<) FIX(>) 0) done = 1;
        __syncthreads();
    } while (!done);  // <- hang
    y[i] = x[i];
}

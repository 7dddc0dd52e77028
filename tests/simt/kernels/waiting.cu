// SPDX-License-Identifier: MIT
// Threads that wait for one another: barriers of a block, words in memory; and traps.

#include "twins.cuh"

// Warp 1 waits for warp 0, which has to say that it has stored.
extern "C" __global__ void no_named_arrive(const float* x, float* y, int n)
{
    __shared__ float s[32];
    const int t = threadIdx.x;
    const int i = blockIdx.x * 32 + t % 32;
    if (t < 32) {
        s[t] = x[i];
        FIX(asm volatile("bar.arrive 1, 64;" ::: "memory");)
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");  // <- barrier that never completes
        y[i] = s[63 - t];
    }
}

// The arrivals of a warp count as 32, and the barrier waits for those of three warps.
extern "C" __global__ void arrivals_of_too_many(const float* x, float* y, int n)
{
    __shared__ float s[32];
    const int t = threadIdx.x;
    const int i = blockIdx.x * 32 + t % 32;
    if (t < 32) {
        s[t] = x[i];
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, " BUG("96") FIX("64") ";" ::: "memory");  // <- barrier that never completes
        y[i] = s[63 - t];
    }
}

// The first warp counts, the other one goes on to the next barrier.
extern "C" __global__ void count_in_a_branch(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    int count = 0;
    BUG(if (t < 32)) count = __syncthreads_count(x[i] > n);  // <- barrier in divergent code
    __syncthreads();
    y[i] = count;
}

// ---- waiting for memory -------------------------------------------------------------------------

// Block 1 waits for a flag that block 0 never sets.
extern "C" __global__ void flag_never_set(const float* x, float* y, int* flag)
{
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        y[t] = x[t];
        __threadfence();
        __syncthreads();
        FIX(if (t == 0) atomicExch(flag, 1);)
    } else {
        if (t == 0) {
            while (*(volatile int*)flag == 0) {}  // <- hang
        }
        __syncthreads();
        y[64 + t] = 2.0f * *(volatile float*)(y + t);
    }
}

extern "C" __global__ void lock_never_released(const float* x, float* y, int* lock)
{
    const int t = threadIdx.x;
    if (t == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}  // <- hang
        __threadfence();
        *(volatile float*)y += x[blockIdx.x];
        __threadfence();
        FIX(atomicExch(lock, 0);)
    }
}

// A block with nothing to do returns, and the others wait for it at the barrier of the grid. The
// launch is no cooperative one: the barrier holds as long as all blocks run at once.
extern "C" __global__ void grid_barrier_after_return(const float* x, float* y, int* arrived)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t, n = (gridDim.x - 1) * blockDim.x;
    BUG(if (i >= n) return;)
    BUG(y[i] = x[i];)
    FIX(if (i < n) y[i] = x[i];)
    __threadfence();
    __syncthreads();
    if (t == 0) {
        atomicAdd(arrived, 1);
        while (*(volatile int*)arrived < gridDim.x) {}  // <- hang
    }
    __syncthreads();
    const float other = i < n ? *(volatile float*)(y + n - 1 - i) : 0.0f;
    if (i < n) y[n + i] = other;
}

// ---- kernels that stop themselves ---------------------------------------------------------------

extern "C" __global__ void trap_on_bad_value(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] > BUG(100.0f) FIX(128.0f)) __trap();  // <- trap
    y[i] = 2.0f * x[i];
}

extern "C" __global__ void failed_assertion(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(x[i] <= BUG(100.0f) FIX(128.0f));  // <- trap
    y[i] = 2.0f * x[i];
}

// A grid-stride loop; the host passes the stride, and zero never gets anywhere.
extern "C" __global__ void endless_loop(float* y, int n, int stride)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    #pragma unroll 1
    while (i < n) {  // <- hang
        if (i > 0)
            y[i] += 1.0f;
        i += BUG(stride) FIX(blockDim.x * gridDim.x);
    }
}

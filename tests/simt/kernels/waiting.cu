// SPDX-License-Identifier: MIT
// Threads that wait for one another: barriers of a block, words in memory; and traps.
// Each kernel has a twin, NAME_clean, without the bug.

// Warp 1 waits for warp 0, which has to say that it has stored.
extern "C" __global__ void no_named_arrive(const float* x, float* y, int n)
{
    __shared__ float s[32];
    const int t = threadIdx.x;
    const int i = blockIdx.x * 32 + t % 32;
    if (t < 32) {
        s[t] = x[i];
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");  // <- barrier that never completes
        y[i] = s[63 - t];
    }
}

extern "C" __global__ void no_named_arrive_clean(const float* x, float* y, int n)
{
    __shared__ float s[32];
    const int t = threadIdx.x;
    const int i = blockIdx.x * 32 + t % 32;
    if (t < 32) {
        s[t] = x[i];
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
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
        asm volatile("bar.sync 1, 96;" ::: "memory");  // <- barrier that never completes
        y[i] = s[63 - t];
    }
}

extern "C" __global__ void arrivals_of_too_many_clean(const float* x, float* y, int n)
{
    __shared__ float s[32];
    const int t = threadIdx.x;
    const int i = blockIdx.x * 32 + t % 32;
    if (t < 32) {
        s[t] = x[i];
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        y[i] = s[63 - t];
    }
}

// The first warp counts, the other one goes on to the next barrier.
extern "C" __global__ void count_in_a_branch(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    int count = 0;
    if (t < 32) count = __syncthreads_count(x[i] > n);  // <- barrier in divergent code
    __syncthreads();
    y[i] = count;
}

extern "C" __global__ void count_in_a_branch_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    int count = 0;
    count = __syncthreads_count(x[i] > n);
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
    } else {
        if (t == 0) {
            while (*(volatile int*)flag == 0) {}  // <- hang
        }
        __syncthreads();
        y[64 + t] = 2.0f * *(volatile float*)(y + t);
    }
}

extern "C" __global__ void flag_never_set_clean(const float* x, float* y, int* flag)
{
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        y[t] = x[t];
        __threadfence();
        __syncthreads();
        if (t == 0) atomicExch(flag, 1);
    } else {
        if (t == 0) {
            while (*(volatile int*)flag == 0) {}
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
    }
}

extern "C" __global__ void lock_never_released_clean(const float* x, float* y, int* lock)
{
    const int t = threadIdx.x;
    if (t == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}
        __threadfence();
        *(volatile float*)y += x[blockIdx.x];
        __threadfence();
        atomicExch(lock, 0);
    }
}

// A block with nothing to do returns, and the others wait for it at the barrier of the grid. The
// launch is no cooperative one: the barrier holds as long as all blocks run at once.
extern "C" __global__ void grid_barrier_after_return(const float* x, float* y, int* arrived)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t, n = (gridDim.x - 1) * blockDim.x;
    if (i >= n) return;
    y[i] = x[i];
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

extern "C" __global__ void grid_barrier_after_return_clean(const float* x, float* y, int* arrived)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t, n = (gridDim.x - 1) * blockDim.x;
    if (i < n) y[i] = x[i];
    __threadfence();
    __syncthreads();
    if (t == 0) {
        atomicAdd(arrived, 1);
        while (*(volatile int*)arrived < gridDim.x) {}
    }
    __syncthreads();
    const float other = i < n ? *(volatile float*)(y + n - 1 - i) : 0.0f;
    if (i < n) y[n + i] = other;
}

// ---- kernels that stop themselves ---------------------------------------------------------------

extern "C" __global__ void trap_on_bad_value(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] > 100.0f) __trap();  // <- trap
    y[i] = 2.0f * x[i];
}

extern "C" __global__ void trap_on_bad_value_clean(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] > 128.0f) __trap();
    y[i] = 2.0f * x[i];
}

extern "C" __global__ void failed_assertion(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(x[i] <= 100.0f);  // <- trap
    y[i] = 2.0f * x[i];
}

extern "C" __global__ void failed_assertion_clean(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(x[i] <= 128.0f);
    y[i] = 2.0f * x[i];
}

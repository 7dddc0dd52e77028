// SPDX-License-Identifier: MIT
// Bulk copies: their sizes and places, their fences, and who waits for them.
// What a bug is reported at is a macro here, so that it counts for the line that uses it; a
// function would be reported at its own line.

#include "twins.cuh"
#include "mbarrier_calls.cuh"

#define BULK_STORE(to, from, bytes)                                                              \
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),        \
                 "r"(place(from)), "r"((int)(bytes))                                             \
                 : "memory")

__device__ __forceinline__ void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ __forceinline__ void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// A row of n elements, n no multiple of 4.
extern "C" __global__ void bulk_odd_size(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x, bytes = BUG(4 * n) FIX(16 * ((n + 3) / 4));
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, bytes);
        BULK_LOAD(s, x, bytes, &full);  // <- misaligned bulk copy
    }
    __syncthreads();
    WAIT(&full, 0);
    if (t < n) y[t] = s[n - 1 - t];
}

// Rows of 66 floats: every second one starts at a multiple of 8 bytes only.
extern "C" __global__ void bulk_odd_address(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    x += blockIdx.x * BUG(66) FIX(68);
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x, sizeof(s), &full);  // <- misaligned bulk copy
    }
    __syncthreads();
    WAIT(&full, 0);
    y[blockIdx.x * 64 + t] = s[63 - t];
}

// The last tile is shorter than the others.
extern "C" __global__ void bulk_past_array(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    const int bytes = 4 * BUG(64) FIX(min(64, n - (int)blockIdx.x * 64));
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, bytes);
        BULK_LOAD(s, x + i, bytes, &full);  // <- out-of-bounds load
    }
    __syncthreads();
    WAIT(&full, 0);
    if (i < n) y[i] = s[t];
}

extern "C" __global__ void bulk_past_shared(const float* x, float* y, int n)
{
    extern __shared__ __align__(128) float row[];
    __shared__ Barrier full;
    const int t = threadIdx.x, bytes = BUG(256) FIX(64) * sizeof(float);
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, bytes);
        BULK_LOAD(row, x + i, bytes, &full);  // <- out-of-bounds shared store
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = row[63 - t];
}

// A bulk copy sees what threads have stored only behind a fence of theirs.
extern "C" __global__ void no_proxy_fence(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    FIX(fence_async();)
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));  // <- shared memory not fenced for an asynchronous copy
        bulk_commit();
        bulk_wait();
    }
}

extern "C" __global__ void no_barrier_before_bulk_store(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    FIX(__syncthreads();)
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));  // <- race on shared memory
        bulk_commit();
        bulk_wait();
    }
}

extern "C" __global__ void buffer_still_read(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    for (int k = 0; k < n; ++k) {
        s[63 - t] = x[k * 64 + t];  // <- asynchronous result used without a wait
        fence_async();
        __syncthreads();
        if (t == 0) {
            BULK_STORE(y + k * 64, s, sizeof(s));
            bulk_commit();
            FIX(bulk_wait_read();)
        }
        __syncthreads();
    }
    if (t == 0) bulk_wait();
}

// Only the thread that has started a copy out can wait for it.
extern "C" __global__ void other_thread_waits(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));
        bulk_commit();
    }
    if (t == BUG(32) FIX(0)) bulk_wait_read();
    __syncthreads();
    s[t] = 0.0f;  // <- asynchronous result used without a wait
    if (t == 0) bulk_wait();
}

// The shared memory of a block that has ended is given to the next.
extern "C" __global__ void bulk_store_at_the_end(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));  // <- asynchronous copy not waited for
        bulk_commit();
        FIX(bulk_wait_read();)
    }
}

// wait_group waits for groups here as well.
extern "C" __global__ void bulk_store_no_commit(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));  // <- asynchronous copy not waited for
        FIX(bulk_commit();)
        bulk_wait();
    }
}

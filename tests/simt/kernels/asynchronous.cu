// SPDX-License-Identifier: MIT
// Threads do not wait for what goes on beside them: copies of 4 to 16 bytes by each thread.
// What a bug is reported at is a macro here, so that it counts for the line that uses it; a
// function would be reported at its own line.

#include "twins.cuh"

__device__ __forceinline__ unsigned place(const void* shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

#define COPY_4(to, from)                                                                         \
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place(to)), "l"(from) : "memory")

#define COPY_16(to, from)                                                                        \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place(to)), "l"(from)         \
                 : "memory")

// Reads `bytes` bytes of the source and fills the rest with zeros.
#define COPY_4_OR_ZERO(to, from, bytes)                                                          \
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(place(to)), "l"(from),     \
                 "r"((int)(bytes))                                                               \
                 : "memory")

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int newest>
__device__ __forceinline__ void wait_group()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
}

extern "C" __global__ void no_wait(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    commit();
    FIX(wait_group<0>();)
    __syncthreads();
    y[i] = s[63 - t];  // <- asynchronous result used without a wait
}

// The last tile is the newest group: one may be left on its way only if another follows.
extern "C" __global__ void last_stage(const float* x, float* y, int n)
{
    __shared__ float s[2][64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    COPY_4(&s[0][t], x + t);
    commit();
    for (int k = 0; k < n; ++k) {
        if (k + 1 < n)
            COPY_4(&s[(k + 1) % 2][t], x + (k + 1) * 64 + t);
        BUG(if (k + 1 < n)) commit();
        wait_group<1>();
        __syncthreads();
        y[k * 64 + t] = s[k % 2][63 - t];  // <- asynchronous result used without a wait
        __syncthreads();
    }
}

// A thread that has waited knows of its own copy only.
extern "C" __global__ void no_barrier_behind_wait(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    commit();
    wait_group<0>();
    FIX(__syncthreads();)
    y[i] = s[63 - t];  // <- race on shared memory
}

// wait_group waits for groups, and what is not committed belongs to none.
extern "C" __global__ void no_commit(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    FIX(commit();)
    wait_group<0>();
    __syncthreads();
    y[i] = s[63 - t];  // <- asynchronous result used without a wait
}

extern "C" __global__ void refill_too_early(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    for (int k = 0; k < n; ++k) {
        COPY_4(&s[t], x + k * 64 + t);  // <- race on shared memory
        commit();
        wait_group<0>();
        __syncthreads();
        y[k * 64 + t] = s[63 - t];
        FIX(__syncthreads();)
    }
}

// One buffer is read while the other is filled: one barrier a tile does, at the right place.
extern "C" __global__ void refill_before_barrier(const float* x, float* y, int n)
{
    __shared__ float s[2][64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    COPY_4(&s[0][t], x + t);
    commit();
    for (int k = 0; k < n; ++k) {
        FIX(wait_group<0>();)
        FIX(__syncthreads();)
        if (k + 1 < n)
            COPY_4(&s[(k + 1) % 2][t], x + (k + 1) * 64 + t);  // <- race on shared memory
        commit();
        BUG(wait_group<1>();)
        BUG(__syncthreads();)
        y[k * 64 + t] = s[k % 2][63 - t];
    }
}

// The end of the array is filled with zeros, and the copy as well writes there.
extern "C" __global__ void store_meanwhile(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    commit();
    FIX(wait_group<0>();)
    if (i >= n) s[t] = 0.0f;  // <- asynchronous result used without a wait
    BUG(wait_group<0>();)
    __syncthreads();
    y[i] = s[63 - t];
}

extern "C" __global__ void copy_past_shared(const float* x, float* y, int n)
{
    __shared__ alignas(16) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t BUG(<=) FIX(<) 16) COPY_16(&s[4 * t], x + 64 * blockIdx.x + 4 * t);  // <- out-of-bounds shared store
    commit();
    wait_group<0>();
    __syncthreads();
    y[i] = s[63 - t];
}

// A copy of nothing but zeros reads nothing, so that its source may lie outside.
extern "C" __global__ void copy_past_array(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    BUG(COPY_4(&s[t], x + i);)  // <- out-of-bounds load
    FIX(COPY_4_OR_ZERO(&s[t], x + i, i < n ? 4 : 0);)
    commit();
    wait_group<0>();
    __syncthreads();
    if (i < n) y[i] = s[t];
}

// The row is missing in the index: all warps copy into one.
extern "C" __global__ void copies_to_one_place(const float* x, float* y, int n)
{
    __shared__ float s[2][32];
    const int t = threadIdx.x, lane = t % 32;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[BUG(0) FIX(t / 32)][lane], x + i);  // <- race on shared memory
    commit();
    wait_group<0>();
    __syncthreads();
    y[i] = s[BUG(0) FIX(t / 32)][31 - lane];
}

// A row padded by one float starts at no multiple of 16 bytes.
extern "C" __global__ void copy_misaligned(const float* x, float* y, int n)
{
    __shared__ alignas(16) float tile[8][BUG(33) FIX(36)];
    const int t = threadIdx.x;
    x += blockIdx.x * 256;
    y += blockIdx.x * 256;
    for (int j = t; j < 8 * BUG(33) FIX(36); j += 64) tile[0][j] = 0.0f;
    __syncthreads();
    COPY_16(&tile[t / 8][4 * (t % 8)], x + 4 * t);  // <- misaligned shared store
    commit();
    wait_group<0>();
    __syncthreads();
    for (int j = t; j < 256; j += 64) y[j] = tile[j % 8][j / 8];
}

extern "C" __global__ void source_misaligned(const float* x, float* y, int n)
{
    __shared__ alignas(16) float s[256];
    const int t = threadIdx.x;
    x += blockIdx.x * 256 BUG(+ n);
    y += blockIdx.x * 256;
    COPY_16(&s[4 * t], x + 4 * t);  // <- misaligned load
    commit();
    wait_group<0>();
    __syncthreads();
    for (int j = t; j < 256; j += 64) y[j] = s[255 - j];
}

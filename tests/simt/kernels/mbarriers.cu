// SPDX-License-Identifier: MIT
// Barriers in shared memory, and the bulk copies that they wait for: who arrives, and what counts.
// What a bug is reported at is a macro here, so that it counts for the line that uses it; a
// function would be reported at its own line.

#include "twins.cuh"
#include "mbarrier_calls.cuh"

extern "C" __global__ void read_before_wait(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    FIX(WAIT(&full, 0);)
    y[i] = s[63 - t];  // <- asynchronous result used without a wait
    BUG(WAIT(&full, 0);)
}

extern "C" __global__ void never_waited(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    FIX(WAIT(&full, 0);)
    y[i] = s[63 - t];  // <- asynchronous result used without a wait
}

// The wait for parity 1 passes at once, as if the phase before the first were over.
extern "C" __global__ void wrong_parity(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, BUG(1) FIX(0));
    y[i] = s[63 - t];  // <- asynchronous result used without a wait
}

// The parity changes from phase to phase: a wait for the old one passes at once.
extern "C" __global__ void parity_stays(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    if (t == 0) {
        init(&full, 1);
        fence_async();
    }
    __syncthreads();
    for (int k = 0; k < n; ++k) {
        if (t == 0) {
            EXPECT(&full, sizeof(s));
            BULK_LOAD(s, x + k * 64, sizeof(s), &full);
        }
        WAIT(&full, BUG(0) FIX(k % 2));
        y[k * 64 + t] = s[63 - t];  // <- asynchronous result used without a wait
        __syncthreads();
    }
}

// The barrier waits for bytes that no copy brings.
extern "C" __global__ void too_many_bytes(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[BUG(68) FIX(64)];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, 64 * sizeof(float), &full);
    }
    __syncthreads();
    WAIT(&full, 0);  // <- hang
    y[i] = s[63 - t];
}

// Two copies, and the bytes of one: the phase ends with the first.
extern "C" __global__ void too_few_bytes(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s BUG([0])));
        BULK_LOAD(s[0], x + i, sizeof(s[0]), &full);
        BULK_LOAD(s[1], x + i + 128, sizeof(s[1]), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[0][63 - t] + s[1][t];  // <- asynchronous result used without a wait
}

// Elements where bytes are meant: the phase never comes out even.
extern "C" __global__ void elements_for_bytes(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, BUG(blockDim.x) FIX(sizeof(s)));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 0);  // <- hang
    y[i] = s[63 - t];
}

// The only arrival ends the phase, since nobody has announced any bytes.
extern "C" __global__ void no_bytes_expected(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        BUG(ARRIVE(&full);)
        FIX(EXPECT(&full, sizeof(s));)
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[63 - t];  // <- asynchronous result used without a wait
}

// The barrier waits for every thread, and one of each warp arrives.
extern "C" __global__ void too_few_arrivals(const float* x, float* y, int n)
{
    __shared__ float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) init(&full, blockDim.x FIX(/ 32));
    __syncthreads();
    s[t] = x[i];
    __syncwarp();
    if (t % 32 == 0) ARRIVE(&full);
    WAIT(&full, 0);  // <- hang
    y[i] = s[63 - t];
}

// Too many arrivals: they end two phases, and the wait for the first becomes one for the third.
extern "C" __global__ void too_many_arrivals(const float* x, float* y, int n)
{
    __shared__ float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) init(&full, BUG(32) FIX(64));
    __syncthreads();
    s[t] = x[i];
    ARRIVE(&full);
    WAIT(&full, 0);  // <- hang
    y[i] = s[63 - t];
}

extern "C" __global__ void no_barrier_behind_init(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    FIX(__syncthreads();)
    WAIT(&full, 0);  // <- race on shared memory
    y[i] = s[63 - t];
}

extern "C" __global__ void all_arrive_behind_init(const float* x, float* y, int n)
{
    __shared__ float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) init(&full, 64);
    FIX(__syncthreads();)
    s[t] = x[i];
    ARRIVE(&full);  // <- race on shared memory
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

// One barrier too few is initialised.
extern "C" __global__ void no_init(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[3][64];
    __shared__ Barrier full[3];
    const int t = threadIdx.x;
    x += blockIdx.x * 192;
    y += blockIdx.x * 192;
    if (t == 0) {
        for (int k = 0; k < BUG(2) FIX(3); ++k) init(&full[k], 1);
        fence_async();
        for (int k = 0; k < 3; ++k) {
            EXPECT(&full[k], sizeof(s[k]));  // <- mbarrier not initialised
            BULK_LOAD(s[k], x + k * 64, sizeof(s[k]), &full[k]);
        }
    }
    __syncthreads();
    for (int k = 0; k < 3; ++k) {
        WAIT(&full[k], 0);
        y[k * 64 + t] = s[k][63 - t];
    }
}

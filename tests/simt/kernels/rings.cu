// SPDX-License-Identifier: MIT
// Rings of stages that bulk copies fill and warps empty.
// What a bug is reported at is a macro here, so that it counts for the line that uses it; a
// function would be reported at its own line.

#include "twins.cuh"
#include "mbarrier_calls.cuh"

extern "C" __global__ void ring_without_barrier(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][64];
    __shared__ Barrier full[2];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) init(&full[k], 1);
        fence_async();
        for (int k = 0; k < 2; ++k) {
            EXPECT(&full[k], sizeof(s[k]));
            BULK_LOAD(s[k], x + k * 64, sizeof(s[k]), &full[k]);
        }
    }
    __syncthreads();
    for (int k = 0; k < n; ++k) {
        WAIT(&full[k % 2], k / 2 % 2);
        y[k * 64 + t] = s[k % 2][63 - t];
        FIX(__syncthreads();)
        if (t == 0 && k + 2 < n) {
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + (k + 2) * 64, sizeof(s[0]), &full[k % 2]);  // <- race on shared memory
        }
    }
}

// Warp 0 fills the ring, warp 1 empties it. `empty` tells that a stage may be filled again.
extern "C" __global__ void ring_without_empty(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][32];
    __shared__ Barrier full[2], empty[2];
    const int t = threadIdx.x, lane = t % 32;
    x += blockIdx.x * n * 32;
    y += blockIdx.x * n * 32;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) {
            init(&full[k], 1);
            init(&empty[k], 32);
        }
        fence_async();
    }
    __syncthreads();
    if (t == 0) {
        for (int k = 0; k < n; ++k) {
            FIX(WAIT(&empty[k % 2], (k / 2 + 1) % 2);)
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + k * 32, sizeof(s[0]), &full[k % 2]);  // <- asynchronous result used without a wait
        }
    } else if (t >= 32) {
        for (int k = 0; k < n; ++k) {
            WAIT(&full[k % 2], k / 2 % 2);
            y[k * 32 + lane] = s[k % 2][31 - lane];
            ARRIVE(&empty[k % 2]);
        }
    }
}

// The ring is empty at first, and so the producer's first wait is for the parity 1 of the phase
// before. Waiting for parity 0, it waits for the consumers, which wait for it.
extern "C" __global__ void ring_starts_full(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][32];
    __shared__ Barrier full[2], empty[2];
    const int t = threadIdx.x, lane = t % 32;
    x += blockIdx.x * n * 32;
    y += blockIdx.x * n * 32;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) {
            init(&full[k], 1);
            init(&empty[k], 32);
        }
        fence_async();
    }
    __syncthreads();
    if (t == 0) {
        for (int k = 0; k < n; ++k) {
            WAIT(&empty[k % 2], (k / 2 FIX(+ 1)) % 2);
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + k * 32, sizeof(s[0]), &full[k % 2]);
        }
    } else if (t >= 32) {
        for (int k = 0; k < n; ++k) {
            WAIT(&full[k % 2], k / 2 % 2);  // <- hang
            y[k * 32 + lane] = s[k % 2][31 - lane];
            ARRIVE(&empty[k % 2]);
        }
    }
}

// The consumers give a stage back before they have read it.
extern "C" __global__ void stage_released_early(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][32];
    __shared__ Barrier full[2], empty[2];
    const int t = threadIdx.x, lane = t % 32;
    x += blockIdx.x * n * 32;
    y += blockIdx.x * n * 32;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) {
            init(&full[k], 1);
            init(&empty[k], 32);
        }
        fence_async();
    }
    __syncthreads();
    if (t == 0) {
        for (int k = 0; k < n; ++k) {
            WAIT(&empty[k % 2], (k / 2 + 1) % 2);
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + k * 32, sizeof(s[0]), &full[k % 2]);  // <- race on shared memory
        }
    } else if (t >= 32) {
        for (int k = 0; k < n; ++k) {
            WAIT(&full[k % 2], k / 2 % 2);
            FIX(y[k * 32 + lane] = s[k % 2][31 - lane];)
            ARRIVE(&empty[k % 2]);
            BUG(y[k * 32 + lane] = s[k % 2][31 - lane];)
        }
    }
}

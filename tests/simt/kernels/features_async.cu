// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: asynchronous copies and mbarriers.
// See tests/simt/test_features.py.

#include "mbarrier_calls.cuh"
#include <cuda_awbarrier_primitives.h>

// Fewer bytes are read than written, the rest are zeros: the end of an array that fills no tile.
extern "C" __global__ void zero_fill(const float* x, float* y, int n)
{
    __shared__ alignas(16) float buffer[70 * 4];
    const int mine = 4 * threadIdx.x, first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    for (int j = 0; j < 4; ++j) buffer[mine + j] = -1;
    __syncthreads();
    const int left = max(0, min(4, n - first));
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     place(buffer + mine)),
                 "l"(x + first), "r"(4 * left)
                 : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int j = 0; j < 4; ++j) y[first + j] = buffer[4 * blockDim.x - 1 - mine - j];
}

__device__ void wait(Barrier* barrier, int parity)
{
    asm volatile(
        "{\n\t"
        ".reg .pred done;\n"
        "WAIT:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 10000000;\n\t"
        "@done bra DONE;\n\t"
        "bra WAIT;\n"
        "DONE:\n\t"
        "}" ::"r"(place(barrier)),
        "r"(parity)
        : "memory");
}

// An mbarrier in place of __syncthreads, waited for by its state, with the functions of the CUDA
// headers.
extern "C" __global__ void mbarrier_header(const int* x, int* y, int rounds)
{
    __shared__ __mbarrier_t barrier;
    __shared__ int values[2][70];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (t == 0) __mbarrier_init(&barrier, blockDim.x);
    __syncthreads();
    int v = x[i];
    for (int round = 0; round < rounds; ++round) {
        values[round % 2][t] = v;
        const __mbarrier_token_t token = __mbarrier_arrive(&barrier);
        while (!__mbarrier_test_wait(&barrier, token)) {
        }
        v = 3 * v + values[round % 2][(t + 33) % blockDim.x];
    }
    y[i] = v;
    __syncthreads();
    if (t == 0) __mbarrier_inval(&barrier);
}

__device__ void copy(void* to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place(to)), "l"(from)
                 : "memory");
}

// The barrier counts the threads whose copies have landed: with .noinc they are those that the
// barrier expects anyway, without it they are added and each thread arrives itself as well.
extern "C" __global__ void arrive_when_copied(const float4* x, float4* y)
{
    __shared__ float4 buffer[2][70];
    __shared__ Barrier barrier;
    const int t = threadIdx.x, size = blockDim.x;
    x += 2 * blockIdx.x * size;
    y += 2 * blockIdx.x * size;
    if (t == 0) init(&barrier, size);
    __syncthreads();
    copy(&buffer[0][t], x + t);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(place(&barrier))
                 : "memory");
    wait(&barrier, 0);
    y[t] = buffer[0][size - 1 - t];
    copy(&buffer[1][t], x + size + t);
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(place(&barrier))
                 : "memory");
    ARRIVE(&barrier);
    wait(&barrier, 1);
    y[size + t] = buffer[1][size - 1 - t];
}

// Only warms a cache.
extern "C" __global__ void bulk_prefetch(const float* x, float* y, int n)
{
    if (threadIdx.x == 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(x + blockIdx.x * n),
                     "r"(4 * n)
                     : "memory");
    for (int j = threadIdx.x; j < n; j += blockDim.x)
        y[blockIdx.x * n + j] = x[blockIdx.x * n + j] + 1;
}

// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: asynchronous copies and mbarriers.
// See tests/simt/features.

#include <cuda_awbarrier_primitives.h>
#include <cuda_pipeline.h>

__device__ unsigned address(const void* shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

// ---- copies of 4 to 16 bytes --------------------------------------------------------------------

template <int bytes>
__device__ void copy(void* to, const void* from)
{
    if constexpr (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(to)), "l"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address(to)), "l"(from),
                     "n"(bytes)
                     : "memory");
}

__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Turns tiles round: while one is read, the next is on its way.
template <int bytes>
__device__ void double_buffer(const float* x, float* y, int tiles)
{
    constexpr int width = bytes / 4;
    __shared__ alignas(16) float buffer[2][70 * width];
    const int mine = threadIdx.x * width, size = blockDim.x * width;
    x += blockIdx.x * tiles * size;
    y += blockIdx.x * tiles * size;
    copy<bytes>(buffer[0] + mine, x + mine);
    commit();
    for (int k = 0; k < tiles; ++k) {
        if (k + 1 < tiles) copy<bytes>(buffer[(k + 1) % 2] + mine, x + (k + 1) * size + mine);
        commit();
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        for (int j = mine; j < mine + width; ++j) y[k * size + j] = buffer[k % 2][size - 1 - j];
        __syncthreads();
    }
}

extern "C" __global__ void copies_of_4(const float* x, float* y, int tiles)
{
    double_buffer<4>(x, y, tiles);
}

extern "C" __global__ void copies_of_8(const float* x, float* y, int tiles)
{
    double_buffer<8>(x, y, tiles);
}

extern "C" __global__ void copies_of_16(const float* x, float* y, int tiles)
{
    double_buffer<16>(x, y, tiles);
}

extern "C" __global__ void pipeline(const float2* x, float2* y, int tiles)
{
    __shared__ float2 buffer[3][70];
    const int t = threadIdx.x, size = blockDim.x;
    x += blockIdx.x * tiles * size;
    y += blockIdx.x * tiles * size;
    for (int k = 0; k < 2; ++k) {
        if (k < tiles) __pipeline_memcpy_async(&buffer[k][t], x + k * size + t, sizeof(float2));
        __pipeline_commit();
    }
    for (int k = 0; k < tiles; ++k) {
        const int ahead = k + 2;
        if (ahead < tiles)
            __pipeline_memcpy_async(&buffer[ahead % 3][t], x + ahead * size + t, sizeof(float2));
        __pipeline_commit();
        __pipeline_wait_prior(2);
        __syncthreads();
        y[k * size + t] = buffer[k % 3][size - 1 - t];
        __syncthreads();
    }
}

// Fewer bytes are read than written, the rest are zeros: the end of an array that fills no tile.
extern "C" __global__ void zero_fill(const float* x, float* y, int n)
{
    __shared__ alignas(16) float buffer[70 * 4];
    const int mine = 4 * threadIdx.x, first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    for (int j = 0; j < 4; ++j) buffer[mine + j] = -1;
    __syncthreads();
    const int left = max(0, min(4, n - first));
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     address(buffer + mine)),
                 "l"(x + first), "r"(4 * left)
                 : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int j = 0; j < 4; ++j) y[first + j] = buffer[4 * blockDim.x - 1 - mine - j];
}

// ---- mbarriers ----------------------------------------------------------------------------------

__device__ void init(unsigned long long* barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count)
                 : "memory");
}

__device__ void arrive(unsigned long long* barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

__device__ void expect(unsigned long long* barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)),
                 "r"(bytes)
                 : "memory");
}

__device__ void wait(unsigned long long* barrier, int parity)
{
    asm volatile(
        "{\n\t"
        ".reg .pred done;\n"
        "WAIT:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 10000000;\n\t"
        "@done bra DONE;\n\t"
        "bra WAIT;\n"
        "DONE:\n\t"
        "}" ::"r"(address(barrier)),
        "r"(parity)
        : "memory");
}

// An mbarrier in place of __syncthreads, waited for by its state.
extern "C" __global__ void mbarrier_state(const int* x, int* y, int rounds)
{
    __shared__ unsigned long long barrier;
    __shared__ int values[2][70];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (t == 0) init(&barrier, blockDim.x);
    __syncthreads();
    int v = x[i];
    for (int round = 0; round < rounds; ++round) {
        values[round % 2][t] = v;
        unsigned long long state;
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];"
                     : "=l"(state)
                     : "r"(address(&barrier))
                     : "memory");
        unsigned done = 0;
        while (!done)
            asm volatile(
                "{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2;"
                " selp.u32 %0, 1, 0, p; }"
                : "=r"(done)
                : "r"(address(&barrier)), "l"(state)
                : "memory");
        v = 3 * v + values[round % 2][(t + 33) % blockDim.x];
    }
    __syncthreads();
    if (t == 0)
        asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(address(&barrier)) : "memory");
    y[i] = v;
}

// The same, waited for by the parity of its phase.
extern "C" __global__ void mbarrier_parity(const int* x, int* y, int rounds)
{
    __shared__ unsigned long long barrier;
    __shared__ int values[2][70];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (t == 0) init(&barrier, blockDim.x);
    __syncthreads();
    int v = x[i];
    for (int round = 0; round < rounds; ++round) {
        values[round % 2][t] = v;
        arrive(&barrier);
        wait(&barrier, round % 2);
        v = 3 * v + values[round % 2][(t + 33) % blockDim.x];
    }
    y[i] = v;
}

// The same with the functions of the CUDA headers; a count of arrivals at once.
extern "C" __global__ void mbarrier_header(const int* x, int* y)
{
    __shared__ __mbarrier_t barrier;
    __shared__ int values[70];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (t == 0) __mbarrier_init(&barrier, blockDim.x);
    __syncthreads();
    values[t] = x[i];
    const __mbarrier_token_t token = __mbarrier_arrive(&barrier);
    while (!__mbarrier_test_wait(&barrier, token)) {
    }
    y[i] = values[blockDim.x - 1 - t];
    __syncthreads();
    if (t == 0) __mbarrier_inval(&barrier);
}

// The barrier counts the threads whose copies have landed: with .noinc they are those that the
// barrier expects anyway, without it they are added and each thread arrives itself as well.
extern "C" __global__ void arrive_when_copied(const float4* x, float4* y)
{
    __shared__ float4 buffer[2][70];
    __shared__ unsigned long long barrier;
    const int t = threadIdx.x, size = blockDim.x;
    x += 2 * blockIdx.x * size;
    y += 2 * blockIdx.x * size;
    if (t == 0) init(&barrier, size);
    __syncthreads();
    copy<16>(&buffer[0][t], x + t);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address(&barrier))
                 : "memory");
    wait(&barrier, 0);
    y[t] = buffer[0][size - 1 - t];
    copy<16>(&buffer[1][t], x + size + t);
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(address(&barrier))
                 : "memory");
    arrive(&barrier);
    wait(&barrier, 1);
    y[size + t] = buffer[1][size - 1 - t];
}

// Warp 0 fills two stages in turn, the other two warps empty them: four phases of each barrier.
extern "C" __global__ void ring(const int* x, int* y, int tiles)
{
    __shared__ unsigned long long full[2], empty[2];
    __shared__ int stages[2][64];
    const int t = threadIdx.x;
    if (t == 0) {
        for (int s = 0; s < 2; ++s) {
            init(&full[s], 32);
            init(&empty[s], 64);
        }
    }
    __syncthreads();
    if (t < 32) {
        for (int k = 0; k < tiles; ++k) {
            const int s = k % 2;
            wait(&empty[s], (k / 2 + 1) % 2);  // the first wait passes: no phase has ended yet
            const int* from = x + (blockIdx.x * tiles + k) * 64;
            stages[s][t] = from[t] + 1;
            stages[s][32 + t] = from[32 + t] * 2;
            arrive(&full[s]);
        }
    } else {
        int sum = 0;
        for (int k = 0; k < tiles; ++k) {
            const int s = k % 2;
            wait(&full[s], k / 2 % 2);
            sum = 3 * sum + stages[s][95 - t];
            arrive(&empty[s]);
        }
        y[blockIdx.x * 64 + t - 32] = sum;
    }
}

// ---- bulk copies --------------------------------------------------------------------------------

__device__ void bulk_load(void* to, const void* from, int bytes, unsigned long long* barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(address(to)),
        "l"(from), "r"(bytes), "r"(address(barrier))
        : "memory");
}

__device__ void bulk_store(void* to, const void* from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(address(from)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// One thread fetches a row in two pieces; n is a multiple of 4.
extern "C" __global__ void bulk_row(const float* x, float* y, int n)
{
    extern __shared__ __align__(128) float row[];
    __shared__ unsigned long long barrier;
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    if (threadIdx.x == 0) {
        init(&barrier, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        expect(&barrier, 4 * n);
        bulk_load(row, x, 16, &barrier);
        bulk_load(row + 4, x + 4, 4 * n - 16, &barrier);
    }
    __syncthreads();
    wait(&barrier, 0);
    for (int j = threadIdx.x; j < n; j += blockDim.x) y[j] = row[n - 1 - j];
}

// Two stages that one thread fills, ahead of the block.
extern "C" __global__ void bulk_ring(const float* x, float* y, int tiles)
{
    __shared__ alignas(128) float stages[2][96];
    __shared__ unsigned long long full[2];
    const int t = threadIdx.x;
    x += blockIdx.x * tiles * 96;
    if (t == 0) {
        init(&full[0], 1);
        init(&full[1], 1);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        for (int k = 0; k < 2; ++k) {
            expect(&full[k], sizeof(stages[k]));
            bulk_load(stages[k], x + k * 96, sizeof(stages[k]), &full[k]);
        }
    }
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < tiles; ++k) {
        const int s = k % 2;
        wait(&full[s], k / 2 % 2);
        for (int j = t; j < 96; j += blockDim.x) sum = sum * 0.5f + stages[s][95 - j];
        __syncthreads();
        if (t == 0 && k + 2 < tiles) {
            expect(&full[s], sizeof(stages[s]));
            bulk_load(stages[s], x + (k + 2) * 96, sizeof(stages[s]), &full[s]);
        }
    }
    y[blockIdx.x * blockDim.x + t] = sum;
}

// Shared to global; the buffer is used again as soon as the first store has read it.
extern "C" __global__ void bulk_out(const float* x, float* y, int n)
{
    extern __shared__ __align__(128) float row[];
    x += blockIdx.x * n;
    y += 2 * blockIdx.x * n;
    for (int half = 0; half < 2; ++half) {
        for (int j = threadIdx.x; j < n; j += blockDim.x) row[j] = x[n - 1 - j] * (half + 2);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_store(y + half * n, row, 4 * n);
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// In, changed in place, and out again.
extern "C" __global__ void bulk_round_trip(float* x, int n)
{
    extern __shared__ __align__(128) float row[];
    __shared__ unsigned long long barrier;
    x += blockIdx.x * n;
    if (threadIdx.x == 0) {
        init(&barrier, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        expect(&barrier, 4 * n);
        bulk_load(row, x, 4 * n, &barrier);
    }
    __syncthreads();
    wait(&barrier, 0);
    for (int j = threadIdx.x; j < n; j += blockDim.x) row[j] = row[j] * row[j] + 1;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(x, row, 4 * n);
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
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

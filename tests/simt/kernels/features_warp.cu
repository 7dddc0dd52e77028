// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: barriers, votes, atomics, clocks.
// See tests/simt/features.

// ---- barriers -----------------------------------------------------------------------------------

extern "C" __global__ void barrier_votes(const int* x, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int count = __syncthreads_count(x[i] > 0);
    const int all = __syncthreads_and(x[i] < 40);
    const int any = __syncthreads_or(x[i] == 7);
    y[i] = 100 * count + 10 * (all != 0) + (any != 0);
}

// Warp 0 fills a buffer, warp 1 empties it, warps 2 and 3 do the same with another one. Each pair
// has two named barriers: "full" and "empty". The fifth warp takes no part.
extern "C" __global__ void named_barriers(const int* x, int* y, int rounds)
{
    __shared__ int buffer[2][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = warp / 2;
    if (warp >= 4) {
        y[(blockIdx.x * 3 + 2) * rounds * 32 + lane] = -1;
        return;
    }
    const int full = 1 + 2 * pair, empty = 2 + 2 * pair;
    int* out = y + (blockIdx.x * 3 + pair) * rounds * 32;
    for (int round = 0; round < rounds; ++round) {
        if (warp % 2 == 0) {
            if (round > 0) asm volatile("bar.sync %0, 64;" ::"r"(empty) : "memory");
            buffer[pair][lane] = x[round * 32 + lane] + 1000 * pair + blockIdx.x;
            __threadfence_block();
            asm volatile("bar.arrive %0, 64;" ::"r"(full) : "memory");
        } else {
            asm volatile("bar.sync %0, 64;" ::"r"(full) : "memory");
            out[round * 32 + lane] = buffer[pair][31 - lane];
            if (round + 1 < rounds) asm volatile("bar.arrive %0, 64;" ::"r"(empty) : "memory");
        }
    }
}

// The same with numbers that are written in the instruction, once.
extern "C" __global__ void named_barrier(const int* x, int* y)
{
    __shared__ int buffer[32];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        buffer[lane] = x[blockIdx.x * 32 + lane] * 5;
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else if (threadIdx.x < 64) {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        y[blockIdx.x * 32 + lane] = buffer[lane ^ 5];
    }
}

extern "C" __global__ void elected(const int* x, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned leader, chosen;
    if (threadIdx.x % 32 >= 3 && threadIdx.x % 32 < 29) {
        asm volatile("{ .reg .pred p; elect.sync %0|p, 0x1ffffff8; selp.u32 %1, 1, 0, p; }"
                     : "=r"(leader), "=r"(chosen));
        if (chosen) atomicAdd(y, 1);
        y[1 + i] = chosen * 100 + __shfl_sync(0x1ffffff8, x[i], leader);
    }
}

// ---- threads that wait for each other -----------------------------------------------------------

// Warps take a ticket and wait until it is their turn. The result depends on every turn.
extern "C" __global__ void ticket_lock(int* y)
{
    __shared__ unsigned next;
    __shared__ volatile unsigned serving;
    __shared__ volatile int chain;
    if (threadIdx.x == 0) next = serving = chain = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        const unsigned ticket = atomicAdd(&next, 1);
        while (serving != ticket) {
        }
        __threadfence_block();
        chain = 3 * chain + (int)ticket + 1;
        __threadfence_block();
        serving = ticket + 1;
    }
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = chain;
}

// One lock for each warp's first lane to take; what it protects is no atomic.
extern "C" __global__ void spin_lock(int* lock, volatile int* total, const int* x, int times)
{
    if (threadIdx.x % 32) return;
    for (int k = 0; k < times; ++k) {
        while (atomicCAS(lock, 0, 1)) __nanosleep(20);
        __threadfence();
        *total = *total + x[(blockIdx.x * blockDim.x + threadIdx.x) / 32] * (k + 1);
        __threadfence();
        atomicExch(lock, 0);
    }
}

// Within a warp: a lane that has the lock gives it back inside the loop, so that no lane waits
// for one that waits for it.
extern "C" __global__ void lock_within_a_warp(int* lock, volatile int* total)
{
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            __threadfence();
            *total = *total + (int)threadIdx.x + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

// Blocks take turns: in each round, block b waits for b - 1, the first one for the last.
extern "C" __global__ void turns(int* turn, int* state, int* log, int rounds)
{
    const int t = threadIdx.x, b = blockIdx.x, count = gridDim.x;
    for (int round = 0; round < rounds; ++round) {
        if (t == 0) {
            while (atomicAdd(turn, 0) != round * count + b) {
            }
            __threadfence();
        }
        __syncthreads();
        state[t] = 3 * state[t] + b + t;
        __syncthreads();
        if (t == 0) {
            log[round * count + b] = state[0];
            __threadfence();
            atomicExch(turn, round * count + b + 1);
        }
    }
}

// The block that finishes last adds up what the others left.
extern "C" __global__ void last_block(const int* x, int* partial, unsigned* finished, int* total)
{
    __shared__ int sum;
    __shared__ bool last;
    const int t = threadIdx.x;
    if (t == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, x[blockIdx.x * blockDim.x + t]);
    __syncthreads();
    if (t == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (t == 0) {
        int all = 0;
        for (int b = 0; b < gridDim.x; ++b) all = 2 * all + ((volatile int*)partial)[b];
        *total = all;
    }
}

// ---- atomics ------------------------------------------------------------------------------------

__device__ float atomic_max(float* place, float value)
{
    int* bits = (int*)place;
    int old = *bits;
    while (__int_as_float(old) < value) {
        const int seen = old;
        old = atomicCAS(bits, seen, __float_as_int(value));
        if (old == seen) break;
    }
    return __int_as_float(old);
}

extern "C" __global__ void float_maximum(const float* x, float* y, int groups, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomic_max(y + i % groups, x[i]);
}

extern "C" __global__ void double_sums(const double* x, double* y, double* before, int groups,
                                       int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double v = fma(x[i], 3.0, 1.0 / (1.0 + x[i] * x[i]));
    before[i] = atomicAdd(y + i % groups, rint(v * 1024.0));
}

extern "C" __global__ void vector_sums(const float* x, float2* pairs, float4* quads, float2* old,
                                       int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    old[i] = atomicAdd(pairs + i % 3, make_float2(x[i], 1.0f));
    atomicAdd(quads + i % 5, make_float4(x[i], -x[i], 2.0f, x[i] * x[i]));
}

extern "C" __global__ void vector_sum_by_asm(float* y, float* old)
{
    float a, b;
    asm volatile("atom.global.v2.f32.add {%0, %1}, [%2], {%3, %4};"
                 : "=f"(a), "=f"(b)
                 : "l"(y), "f"(1.0f), "f"(0.5f)
                 : "memory");
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    old[2 * i] = a;
    old[2 * i + 1] = b;
}

// One atomic for all the lanes of a warp that pass, and each lane its own place.
extern "C" __global__ void compaction(const int* x, int* y, int* count, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || x[i] % 3) return;
    const unsigned active = __activemask();
    const int leader = __ffs(active) - 1, lane = threadIdx.x % 32;
    int first = 0;
    if (lane == leader) first = atomicAdd(count, __popc(active));
    first = __shfl_sync(active, first, leader);
    y[first + __popc(active & ((1u << lane) - 1))] = x[i];
}

// ---- time, and what is not reached --------------------------------------------------------------

// Clocks never run backwards within a thread.
extern "C" __global__ void clocks(const float* x, float* y, long long* ticks, unsigned* cycles)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const long long before = clock64();
    unsigned low, high;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(low)::"memory");
    unsigned long long start, end;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start)::"memory");
    float v = x[i];
    for (int j = 0; j < 20; ++j) v = v * 0.5f + 1.0f;
    y[i] = v;
    __nanosleep(100);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end)::"memory");
    asm volatile("mov.u32 %0, %%clock;" : "=r"(high)::"memory");
    cycles[i] = high - low;
    ticks[i] = start == 0 || end < start ? -1 : clock64() - before;
}

extern "C" __global__ void trap_not_reached(const int* x, int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        if (x[i] < 0) __trap();
        y[i] = x[i] + 1;
    } else if (n < 0) {
        asm volatile("exit;");
    }
}

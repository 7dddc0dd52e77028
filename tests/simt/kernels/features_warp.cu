// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: barriers, votes, atomics, clocks.
// See tests/simt/test_features.py.

extern "C" __global__ void barrier_votes(const int* x, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int count = __syncthreads_count(x[i] > 0);
    const int all = __syncthreads_and(x[i] < 40);
    const int any = __syncthreads_or(x[i] == 7);
    y[i] = 100 * count + 10 * (all != 0) + (any != 0);
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

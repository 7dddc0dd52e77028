// SPDX-License-Identifier: MIT
// Idea:     reads the row twice, but lets only so many rows be in work that half of the L2 cache
//           holds them: the second read, backwards from what came last, need not go to memory.
// Row:      one block at a time; a block takes row after row
// Launch:   block = 1024, block == 1024, grid = min(rows, max(1, min(2 * sms, l2 / 2 / row)))
// Shared:   0
// Columns:  cols % 4 == 0 && cols >= 1024
// Align:    16
// Dtype:    float32
// Arch:     sm_75
// Reads:    2 reads + 1 write
// Wastes:   where a row takes a large part of the cache, the few blocks in work cannot keep the
//           memory busy.
// Measured: 1070 GB/s, 0.25 of a copy at 1024 x 262144 (H200, 2026-11-21)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. Measured with -ftz=true, as
// CuPy compiles.

#include "../include/reductions.cuh"

// exp(value) as the hardware computes it: 2^(value * log2(e)).
__device__ __forceinline__ float exponential(float value)
{
    return exp2f(value * 1.44269504f);
}

extern "C" __global__ void __launch_bounds__(1024)
softmax_two_reads(const float* __restrict__ x, float* __restrict__ y, int rows, int cols)
{
    __shared__ float maxima[32];
    __shared__ float sums[32];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int packs = cols / 4;

    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float4* x4 = reinterpret_cast<const float4*>(x + (long long)row * cols);
        float4* y4 = reinterpret_cast<float4*>(y + (long long)row * cols);

        float thread_max = lowest;
        float sum = 0.0f;
#pragma unroll 4
        for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
            const float4 v = x4[pack];
            const float new_max = fmaxf(thread_max, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
            sum = sum * exponential(thread_max - new_max)
                + (exponential(v.x - new_max) + exponential(v.y - new_max))
                + (exponential(v.z - new_max) + exponential(v.w - new_max));
            thread_max = new_max;
        }

        float row_max = warp_max(thread_max);
        sum = warp_sum(sum * exponential(thread_max - row_max));
        if (lane == 0) {
            maxima[warp] = row_max;
            sums[warp] = sum;
        }
        __syncthreads();
        const float warp_maximum = maxima[lane];  // 1024 threads: 32 warps
        row_max = warp_max(warp_maximum);
        sum = warp_sum(sums[lane] * exponential(warp_maximum - row_max));
        const float scale = 1.0f / sum;

        // What was read last is surest to be in the cache still. It is not needed any more.
        const int thread = threadIdx.x, threads = blockDim.x;
        const int own = (packs - thread + threads - 1) / threads;  // packs of this thread
#pragma unroll 4
        for (int k = own - 1; k >= 0; --k) {
            const int pack = thread + k * threads;
            const float4 v = __ldcs(x4 + pack);
            __stcs(y4 + pack, make_float4(exponential(v.x - row_max) * scale,
                                          exponential(v.y - row_max) * scale,
                                          exponential(v.z - row_max) * scale,
                                          exponential(v.w - row_max) * scale));
        }
        __syncthreads();  // before the next row's pairs
    }
}

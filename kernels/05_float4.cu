// SPDX-License-Identifier: MIT
// Idea:     16 bytes an access and several accesses in flight; one exponential serves to rescale
//           four columns, and one reciprocal a row replaces all divisions.
// Row:      one block
// Launch:   block = 256, block % 32 == 0, grid = rows
// Shared:   0
// Columns:  cols >= 1
// Align:    16
// Dtype:    float32
// Arch:     sm_75
// Reads:    2 reads + 1 write
// Wastes:   reads the row a second time, though a thread's share of it would fit into its
//           registers (06).
// Measured: 3978 GB/s, 0.93 of a copy at 65536 x 4096 (H200, 2026-11-21)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch.

#ifndef UNROLL
#define UNROLL 4  // accesses of a thread that may be in flight at once
#endif
constexpr int unroll = UNROLL;  // nvcc does not expand a macro in #pragma unroll

// exp(value) as the hardware computes it: 2^(value * log2(e)).
__device__ __forceinline__ float exponential(float value)
{
    return exp2f(value * 1.44269504f);
}

// Makes the pair (row_max, sum) describe the columns of both pairs.
__device__ __forceinline__ void merge(float& row_max, float& sum, float other_max, float other_sum)
{
    const float new_max = fmaxf(row_max, other_max);
    sum = sum * exponential(row_max - new_max) + other_sum * exponential(other_max - new_max);
    row_max = new_max;
}

// The largest of 32 lanes' values, in every lane: a butterfly of five exchanges.
__device__ __forceinline__ float warp_max(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
    return value;
}

// The sum of 32 lanes' values, in every lane.
__device__ __forceinline__ float warp_sum(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffff, value, distance);
    return value;
}

extern "C" __global__ void softmax_float4(const float* __restrict__ x, float* __restrict__ y,
                                          int rows, int cols)
{
    __shared__ float maxima[32];  // a block has at most 32 warps
    __shared__ float sums[32];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const long long start = (long long)blockIdx.x * cols;
    x += start;
    y += start;

    // A float4 must begin at a multiple of 16 bytes, but a row need not: up to three columns come
    // before the first such address and up to three after the last pack. Thread t takes the
    // t-th of these columns.
    const int before = min((int)(-start & 3), cols);
    const int packs = (cols - before) / 4;
    const float4* x4 = reinterpret_cast<const float4*>(x + before);
    float4* y4 = reinterpret_cast<float4*>(y + before);
    const int single = threadIdx.x < before ? threadIdx.x : threadIdx.x + 4 * packs;

    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu
    float row_max = lowest;
    float sum = 0.0f;
#pragma unroll unroll
    for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        const float4 v = x4[pack];
        const float new_max = fmaxf(row_max, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
        sum = sum * exponential(row_max - new_max)
            + (exponential(v.x - new_max) + exponential(v.y - new_max))
            + (exponential(v.z - new_max) + exponential(v.w - new_max));
        row_max = new_max;
    }
    if (single < cols) merge(row_max, sum, x[single], 1.0f);

    // Agree on the maximum first: then one rescaling serves all five exchanges of the sum.
    const float thread_max = row_max;
    row_max = warp_max(thread_max);
    sum = warp_sum(sum * exponential(thread_max - row_max));
    if (lane == 0) {
        maxima[warp] = row_max;
        sums[warp] = sum;
    }
    __syncthreads();

    const bool exists = lane < blockDim.x / 32;
    const float warp_maximum = exists ? maxima[lane] : lowest;
    row_max = warp_max(warp_maximum);
    sum = warp_sum(exists ? sums[lane] * exponential(warp_maximum - row_max) : 0.0f);

    const float scale = 1.0f / sum;
#pragma unroll unroll
    for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        const float4 v = x4[pack];
        y4[pack] = make_float4(
            exponential(v.x - row_max) * scale, exponential(v.y - row_max) * scale,
            exponential(v.z - row_max) * scale, exponential(v.w - row_max) * scale);
    }
    if (single < cols) y[single] = exponential(x[single] - row_max) * scale;
}

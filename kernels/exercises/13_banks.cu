// SPDX-License-Identifier: MIT
// Idea:     a block holds 32 neighbouring columns; its eight warps divide the rows among themselves
// Row:      all blocks share a row; each block owns 32 of its columns
// Launch:   block = 256, grid = ceil_div(cols, 32)
// Shared:   0
// Columns:  rows <= 128
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 8 minutes. The kernel is correct, but eight lanes share a bank. Choose another pitch.

extern "C" __global__ void softmax_banks(const float* __restrict__ x, float* __restrict__ y,
                                         int rows, int cols)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int col = blockIdx.x * 32 + lane;  // neighbouring lanes, neighbouring columns

    const float minus_inf = __int_as_float(0xff800000);
    float v[16];  // rows warp, warp + 8, ...
    float largest = -3.402823466e+38f;  // finite: see 02_online.cu
#pragma unroll
    for (int k = 0; k < 16; ++k) {
        const int row = warp + 8 * k;
        v[k] = row < rows && col < cols ? x[(long long)row * cols + col] : minus_inf;
        largest = fmaxf(largest, v[k]);
    }
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 16; ++k) {
        v[k] = expf(v[k] - largest);
        sum += v[k];
    }

    // Each of the eight warps has a pair per column. Eight lanes merge the pairs of one column.
    constexpr int pitch = 32;  // floats from one warp's values to the next warp's
    __shared__ float maxima[8 * 64], sums[8 * 64];  // room for pitches up to 64
    __shared__ float column_max[32], column_sum[32];
    maxima[warp * pitch + lane] = largest;
    sums[warp * pitch + lane] = sum;
    __syncthreads();
    const int column = threadIdx.x / 8, part = threadIdx.x % 8;
    float max_here = maxima[part * pitch + column], sum_here = sums[part * pitch + column];
    for (int distance = 4; distance > 0; distance /= 2) {
        const float other_max = __shfl_xor_sync(0xffffffff, max_here, distance);
        const float other_sum = __shfl_xor_sync(0xffffffff, sum_here, distance);
        const float both = fmaxf(max_here, other_max);
        sum_here = sum_here * expf(max_here - both) + other_sum * expf(other_max - both);
        max_here = both;
    }
    if (part == 0) {
        column_max[column] = max_here;
        column_sum[column] = sum_here;
    }
    __syncthreads();
    const float scale = expf(largest - column_max[lane]) / column_sum[lane];

#pragma unroll
    for (int k = 0; k < 16; ++k) {
        const int row = warp + 8 * k;
        if (row < rows && col < cols) y[(long long)row * cols + col] = v[k] * scale;
    }
}

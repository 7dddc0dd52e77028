// SPDX-License-Identifier: MIT
// Idea:     the gradient of cross-entropy: softmax, minus 1 in the target's column
// Row:      one warp
// Launch:   block = 32, grid = rows
// Shared:   0
// Columns:  cols <= 512
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 6 minutes. The target of row r is column r % cols. One lane corrects it while another lane may
// still be writing it. Change that: each column is to be written once, by a single lane.

extern "C" __global__ void minus_target(const float* __restrict__ x, float* __restrict__ y,
                                  int rows, int cols)
{
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;
    const int target = blockIdx.x % cols;

    float v[16];
    float row_max = -3.402823466e+38f;  // finite: see 02_online.cu
#pragma unroll
    for (int k = 0; k < 16; ++k) {
        const int col = threadIdx.x + 32 * k;
        v[k] = col < cols ? x[col] : __int_as_float(0xff800000);  // -inf
        row_max = fmaxf(row_max, v[k]);
    }
    for (int distance = 16; distance > 0; distance /= 2)
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, distance));

    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 16; ++k) {
        v[k] = expf(v[k] - row_max);
        sum += v[k];
    }
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, distance);

#pragma unroll
    for (int k = 0; k < 16; ++k) {
        const int col = threadIdx.x + 32 * k;
        if (col < cols) y[col] = v[k] / sum;
    }
    if (threadIdx.x == 0) y[target] -= 1.0f;
}

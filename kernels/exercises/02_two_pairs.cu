// SPDX-License-Identifier: MIT
// Idea:     online softmax with two independent pairs per thread, merged at the end
// Row:      one thread
// Launch:   block = 128, grid = (rows + block - 1) / block
// Shared:   0
// Columns:  cols >= 1
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    2 reads + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 5 minutes. The loop is correct, but the results are wrong.

extern "C" __global__ void softmax_two_pairs(const float* __restrict__ x, float* __restrict__ y,
                                             int rows, int cols)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;

    x += (long long)row * cols;
    y += (long long)row * cols;

    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu
    float max_even = lowest, sum_even = 0.0f;
    float max_odd = lowest, sum_odd = 0.0f;
    for (int col = 0; col < cols; col += 2) {
        const float even = x[col];
        const float new_even = fmaxf(max_even, even);
        sum_even = sum_even * expf(max_even - new_even) + expf(even - new_even);
        max_even = new_even;
        if (col + 1 < cols) {
            const float odd = x[col + 1];
            const float new_odd = fmaxf(max_odd, odd);
            sum_odd = sum_odd * expf(max_odd - new_odd) + expf(odd - new_odd);
            max_odd = new_odd;
        }
    }

    // Merge (max_even, sum_even) and (max_odd, sum_odd) into one pair.
    const float row_max = fmaxf(max_even, max_odd);
    const float sum = sum_even + sum_odd;

    for (int col = 0; col < cols; ++col)
        y[col] = expf(x[col] - row_max) / sum;
}

// SPDX-License-Identifier: MIT
// Idea:     maximum and log(sum(exp(x - maximum))) of a row in one read; a second read
//           gives the gradient of each column
// Row:      one warp
// Launch:   block = 32, grid = rows
// Shared:   0
// Columns:  cols >= 1
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    2 reads + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 12 minutes. The target of row r is column r % cols; the gradient is softmax, minus 1 there. Find
// both parts of the row's lse, its maximum and log(sum(exp(x - maximum))), in one read of the row
// and without overflow.

extern "C" __global__ void from_statistics(const float* __restrict__ x, float* __restrict__ y,
                                           int rows, int cols)
{
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;
    const int target = blockIdx.x % cols;

    float row_max = 0.0f, log_sum = 0.0f;
    // ---- write here ----

    for (int col = threadIdx.x; col < cols; col += 32)
        y[col] = expf(x[col] - row_max - log_sum) - (col == target ? 1.0f : 0.0f);
}

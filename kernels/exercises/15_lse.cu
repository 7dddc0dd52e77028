// SPDX-License-Identifier: MIT
// Idea:     log(sum(exp(x))) of a row in one read; with it the gradient is a matter of each column
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
// 12 minutes. The target of row r is column r % cols, the gradient exp(x - lse), less 1 there. Find
// lse of the row, in one read of it and without an overflow.

extern "C" __global__ void from_lse(const float* __restrict__ x, float* __restrict__ y,
                                  int rows, int cols)
{
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;
    const int target = blockIdx.x % cols;

    float lse = 0.0f;
    // ---- write here ----

    for (int col = threadIdx.x; col < cols; col += 32)
        y[col] = expf(x[col] - lse) - (col == target ? 1.0f : 0.0f);
}

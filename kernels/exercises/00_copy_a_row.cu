// SPDX-License-Identifier: MIT
// Idea:     a block copies one row of the matrix
// Row:      one block
// Launch:   block = 128, grid = rows
// Shared:   0
// Columns:  cols >= 1
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 5 minutes. The copy is correct, but its requests touch eight bytes for each byte that they
// use. Repair this; the kernel must still work for every value of cols.

extern "C" __global__ void copy_a_row(const float* __restrict__ x, float* __restrict__ y,
                                      int rows, int cols)
{
    const int row = blockIdx.x;
    x += (long long)row * cols;
    y += (long long)row * cols;

    if (threadIdx.x == 0)
        for (int col = 0; col < cols; ++col)
            y[col] = x[col];
}

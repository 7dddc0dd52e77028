// SPDX-License-Identifier: MIT
// Idea:     copy x to y, one float per thread
// Row:      none; the matrix is one flat array
// Launch:   block = 128, grid = (rows * cols + block - 1) / block
// Shared:   0
// Columns:  cols >= 1
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 4 minutes. Which float does this thread copy, and which threads copy none?

extern "C" __global__ void copy_flat(const float* __restrict__ x, float* __restrict__ y,
                                     int rows, int cols)
{
    // x and y are arrays of rows * cols floats, a number that may exceed the range of int.
    // ---- write here ----
}

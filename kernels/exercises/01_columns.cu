// SPDX-License-Identifier: MIT
// Idea:     one thread computes the softmax of one column, down the rows
// Row:      all threads share a row, each owns a column
// Launch:   block = 128, grid = (cols + block - 1) / block
// Shared:   0
// Columns:  cols >= 1
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    3 reads + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 4 minutes. The results are wrong, and the loads are uncoalesced: one mistake, in four places.

extern "C" __global__ void softmax_columns(const float* __restrict__ x, float* __restrict__ y,
                                           int rows, int cols)
{
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;

    float column_max = __int_as_float(0xff800000);  // -inf
    for (int row = 0; row < rows; ++row)
        column_max = fmaxf(column_max, x[(long long)col * rows + row]);

    float sum = 0.0f;
    for (int row = 0; row < rows; ++row)
        sum += expf(x[(long long)col * rows + row] - column_max);

    for (int row = 0; row < rows; ++row)
        y[(long long)col * rows + row] = expf(x[(long long)col * rows + row] - column_max) / sum;
}

// SPDX-License-Identifier: MIT
// Sums the rows of a matrix; the loop runs one column too far.

extern "C" __global__ void buggy(const float* x, float* y, int rows, int cols)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int col = 0; col <= cols; ++col)
        sum += x[row * cols + col];  // <- out-of-bounds load
    y[row] = sum;
}

extern "C" __global__ void clean(const float* x, float* y, int rows, int cols)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int col = 0; col < cols; ++col)
        sum += x[row * cols + col];
    y[row] = sum;
}

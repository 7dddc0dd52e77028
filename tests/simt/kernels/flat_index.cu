// SPDX-License-Identifier: MIT
// A two-dimensional block copies a matrix; the guard forgets the rows.

extern "C" __global__ void buggy(const int* x, int* y, int rows, int cols)
{
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (col < cols) {
        const int v = x[row * cols + col];  // <- out-of-bounds load
        y[row * cols + col] = v;            // <- out-of-bounds store
    }
}

extern "C" __global__ void clean(const int* x, int* y, int rows, int cols)
{
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (col < cols && row < rows)
        y[row * cols + col] = x[row * cols + col];
}

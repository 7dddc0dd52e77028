// SPDX-License-Identifier: MIT
// A thread per row, in whole blocks; nothing stops the threads past the last row.

__device__ float twice(const float* x, int i)
{
    return 2.0f * x[i];  // <- out-of-bounds load
}

extern "C" __global__ void buggy(const float* x, float* y, int rows)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    const float v = twice(x, row);
    y[row] = v;  // <- out-of-bounds store
}

extern "C" __global__ void clean(const float* x, float* y, int rows)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float v = twice(x, row);
    y[row] = v;
}

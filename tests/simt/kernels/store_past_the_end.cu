// SPDX-License-Identifier: MIT
// Writes every element twice, next to each other; y has room for one of each only.

extern "C" __global__ void buggy(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[2 * i] = x[i];      // <- out-of-bounds store
    y[2 * i + 1] = x[i];  // <- out-of-bounds store
}

extern "C" __global__ void clean(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n / 2) return;
    y[2 * i] = x[i];
    y[2 * i + 1] = x[i];
}

// SPDX-License-Identifier: MIT
// Differences of neighbours; the first element has no left neighbour.

extern "C" __global__ void buggy(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i]
             - x[i - 1];  // <- out-of-bounds load
}

extern "C" __global__ void clean(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i] - (i > 0 ? x[i - 1] : 0.0f);
}

// SPDX-License-Identifier: MIT
// A grid-stride loop; the host passes the stride, and zero never gets anywhere.

extern "C" __global__ void buggy(float* y, int n, int stride)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    #pragma unroll 1
    while (i < n) {  // <- hang
        if (i > 0)
            y[i] += 1.0f;
        i += stride;
    }
}

extern "C" __global__ void clean(float* y, int n, int stride)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    #pragma unroll 1
    while (i < n) {
        if (i > 0)
            y[i] += 1.0f;
        i += blockDim.x * gridDim.x;
    }
}

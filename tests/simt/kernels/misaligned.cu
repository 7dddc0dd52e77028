// SPDX-License-Identifier: MIT
// Doubles a row, four floats at a time; a row may start anywhere.

extern "C" __global__ void buggy(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (4 * i >= n) return;
    float4 v = reinterpret_cast<const float4*>(x)[i];  // <- misaligned load
    v.x *= 2.0f;
    v.y *= 2.0f;
    v.z *= 2.0f;
    v.w *= 2.0f;
    reinterpret_cast<float4*>(y)[i] = v;  // <- misaligned store
}

extern "C" __global__ void clean(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int j = 4 * i; j < 4 * i + 4 && j < n; ++j)
        y[j] = 2.0f * x[j];
}

// SPDX-License-Identifier: MIT
// Follows a pointer made from a number, and takes an offset in bytes for one in elements.

extern "C" __global__ void buggy(const float* x, float* y, long long number)
{
    const int i = threadIdx.x;
    const float* nowhere = reinterpret_cast<const float*>(number);
    const float a = nowhere[i];          // <- out-of-bounds load
    const float b = x[i * (1ll << 40)];  // <- out-of-bounds load
    y[i] = a + b;
}

extern "C" __global__ void clean(const float* x, float* y, long long number)
{
    const int i = threadIdx.x;
    y[i] = x[i];
}

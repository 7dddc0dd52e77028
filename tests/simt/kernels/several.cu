// SPDX-License-Identifier: MIT
// Four bugs, one after the other. One run shows them all.

extern "C" __global__ void buggy(const float* x, const float* z, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i + 1];  // <- out-of-bounds load
    if (i % 2)
        v += z[i - 3];  // <- out-of-bounds load
    const float2 pair = reinterpret_cast<const float2*>(z + 1)[i / 4];  // <- misaligned load
    v += pair.x * pair.y;
    y[i == 5 ? -1 : i] = v;  // <- out-of-bounds store
}

extern "C" __global__ void clean(const float* x, const float* z, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i + 1 < n ? x[i + 1] : 0.0f;
    if (i % 2 && i >= 3)
        v += z[i - 3];
    const float2 pair = reinterpret_cast<const float2*>(z)[i / 4];
    v += pair.x * pair.y;
    y[i] = v;
}

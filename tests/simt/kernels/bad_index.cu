// SPDX-License-Identifier: MIT
// Gathers through a table of offsets, a table of row bounds and a table of pointers. The last
// thread reads an entry that is not there; what follows from it is not another bug.

extern "C" __global__ void buggy(const int* offsets, const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int start = offsets[i];
    const int stop = offsets[i + 1];  // <- out-of-bounds load
    float sum = x[stop];
    for (int j = start; j != stop && j < start + 4; ++j)
        sum += x[j + stop];
    y[i] = sum;
}

extern "C" __global__ void clean(const int* offsets, const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n - 1) return;
    const int start = offsets[i];
    const int stop = offsets[i + 1];
    float sum = x[stop];
    for (int j = start; j != stop && j < start + 4; ++j)
        sum += x[j + stop];
    y[i] = sum;
}

extern "C" __global__ void bad_pointer(const float* const* table, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float* row = table[i + n];  // <- out-of-bounds load
    y[i] = row[0] + row[3];
}

extern "C" __global__ void unsigned_bound(const unsigned* sizes, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned size = sizes[i + n];  // <- out-of-bounds load
    #pragma unroll 1
    for (unsigned j = 0; j < size && j < 100u; ++j)
        y[i + 64 * j] = 1.0f;
}

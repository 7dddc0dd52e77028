// SPDX-License-Identifier: MIT
// Accesses of global memory past the end of an array, before it, nowhere, and off their alignment.

#include "twins.cuh"

// Sums the rows of a matrix; the loop runs one column too far.
extern "C" __global__ void off_by_one(const float* x, float* y, int rows, int cols)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int col = 0; col BUG(<=) FIX(<) cols; ++col)
        sum += x[row * cols + col];  // <- out-of-bounds load
    y[row] = sum;
}

// Differences of neighbours; the first element has no left neighbour.
extern "C" __global__ void before_the_array(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i]
             - (FIX(i > 0 ?) x[i - 1] FIX(: 0.0f));  // <- out-of-bounds load
}

// A thread per row, in whole blocks; nothing stops the threads past the last row.
__device__ float twice(const float* x, int i)
{
    return 2.0f * x[i];  // <- out-of-bounds load
}

extern "C" __global__ void missing_guard(const float* x, float* y, int rows)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    FIX(if (row >= rows) return;)
    const float v = twice(x, row);
    y[row] = v;  // <- out-of-bounds store
}

// A two-dimensional block copies a matrix; the guard forgets the rows.
extern "C" __global__ void flat_index(const int* x, int* y, int rows, int cols)
{
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (col < cols FIX(&& row < rows)) {
        const int v = x[row * cols + col];  // <- out-of-bounds load
        y[row * cols + col] = v;            // <- out-of-bounds store
    }
}

// Writes every element twice, next to each other; y has room for one of each only.
extern "C" __global__ void store_past_the_end(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n FIX(/ 2)) return;
    y[2 * i] = x[i];      // <- out-of-bounds store
    y[2 * i + 1] = x[i];  // <- out-of-bounds store
}

// Doubles a row, four floats at a time; a row may start anywhere.
extern "C" __global__ void misaligned(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef PLANTED
    if (4 * i >= n) return;
    float4 v = reinterpret_cast<const float4*>(x)[i];  // <- misaligned load
    v.x *= 2.0f;
    v.y *= 2.0f;
    v.z *= 2.0f;
    v.w *= 2.0f;
    reinterpret_cast<float4*>(y)[i] = v;  // <- misaligned store
#else
    for (int j = 4 * i; j < 4 * i + 4 && j < n; ++j)
        y[j] = 2.0f * x[j];
#endif
}

// Follows a pointer made from a number, and takes an offset in bytes for one in elements.
extern "C" __global__ void wild_pointer(const float* x, float* y, long long number)
{
    const int i = threadIdx.x;
#ifdef PLANTED
    const float* nowhere = reinterpret_cast<const float*>(number);
    const float a = nowhere[i];          // <- out-of-bounds load
    const float b = x[i * (1ll << 40)];  // <- out-of-bounds load
    y[i] = a + b;
#else
    y[i] = x[i];
#endif
}

// Gathers through a table of offsets, a table of row bounds and a table of pointers. The last
// thread reads an entry that is not there; what follows from it is not another bug.
extern "C" __global__ void bad_index(const int* offsets, const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n FIX(- 1)) return;
    const int start = offsets[i];
    const int stop = offsets[i + 1];  // <- out-of-bounds load
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

// Four bugs, one after the other. One run shows them all.
extern "C" __global__ void several(const float* x, const float* z, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = FIX(i + 1 >= n ? 0.0f :) x[i + 1];  // <- out-of-bounds load
    if (i % 2 FIX(&& i >= 3))
        v += z[i - 3];  // <- out-of-bounds load
    const float2 pair = reinterpret_cast<const float2*>(z BUG(+ 1))[i / 4];  // <- misaligned load
    v += pair.x * pair.y;
    y[BUG(i == 5 ? -1 :) i] = v;  // <- out-of-bounds store
}

// SPDX-License-Identifier: MIT
// Kernels whose global memory traffic is counted on the SIMT machine and by Nsight Compute.
// Each does one thing, and in a way that the compiler cannot turn into other accesses.

extern "C" __global__ void copy_bytes(const unsigned char* x, unsigned char* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}

extern "C" __global__ void copy_halves(const unsigned short* x, unsigned short* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}

extern "C" __global__ void copy_floats(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}

extern "C" __global__ void copy_doubles(const double* x, double* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}

extern "C" __global__ void copy_float2(const float2* x, float2* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}

extern "C" __global__ void copy_float4(const float4* x, float4* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}

struct Point {
    float a, b, c;
};

extern "C" __global__ void copy_points(const Point* x, Point* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}

extern "C" __global__ void strided_loads(const float* x, float* y, int n, int stride)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i * stride];
}

extern "C" __global__ void strided_stores(const float2* x, float2* y, int n, int stride)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i * stride] = x[i];
}

extern "C" __global__ void strided_vectors(const float4* x, float4* y, int n, int stride)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i * stride];
}

// x and y have n + 1 elements; the first is not touched.
extern "C" __global__ void off_by_an_element(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i + 1] = x[i + 1];
}

extern "C" __global__ void reversed(const double* x, double* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[n - 1 - i] = x[i];
}

extern "C" __global__ void gather(const float* x, const int* index, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[index[i]];
}

extern "C" __global__ void scatter(const float* x, const int* index, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[index[i]] = x[i];
}

extern "C" __global__ void transposed_store(const float* x, float* y, int rows, int cols)
{
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (col < cols && row < rows) y[col * rows + row] = x[row * cols + col];
}

// One value for each block, and one for each group of `group` threads.
extern "C" __global__ void broadcast(const float* x, const float* z, float* y, int n, int group)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[blockIdx.x] + z[i / group];
}

// Lanes part ways twice; some warps have nobody on one of the ways.
extern "C" __global__ void divergent(const float* x, const float* z, float* y, int n, int limit)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = 0.0f;
    if (i % 3 == 0)
        v = x[2 * i];
    else if (i < limit)
        v = z[i] + x[i + 1];
    if (i > limit && i % 2) y[i] = v;
    else y[i] = -v;
}

// Every lane picks its array.
extern "C" __global__ void two_arrays(const float* x, const float* z, float* y, int n, int period)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float* from = i / period % 2 ? x : z;
    y[i] = from[i];
}

extern "C" __global__ void stencil(const float* x, float* y, int rows, int cols)
{
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (col < 1 || row < 1 || col >= cols - 1 || row >= rows - 1) return;
    const float* middle = x + row * cols + col;
    y[row * cols + col] = middle[0] + middle[-1] + middle[1] + middle[-cols] + middle[cols];
}

extern "C" __global__ void grid_stride(const float* x, float* y, int n)
{
    float sum = 0.0f;
    const int first = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = first; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    y[first] = sum;
}

extern "C" __global__ void cache_hints(const float* x, const float* z, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __stcs(y + i, __ldcs(x + i) + __ldcg(z + i) + __ldg(x + n - 1 - i));
}

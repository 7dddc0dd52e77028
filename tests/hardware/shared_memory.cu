// SPDX-License-Identifier: MIT
// Kernels whose shared memory traffic is counted on the SIMT machine and by Nsight Compute.

extern __shared__ float4 dynamic[];

// Stores to every `stride`-th element and loads them in another order.
template <typename T>
__device__ void strided(const T* x, T* y, int n, int stride)
{
    T* s = reinterpret_cast<T*>(dynamic);
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (i < n) s[t * stride] = x[i];
    __syncthreads();
    const int other = t ^ 1;
    if (i < n && i - t + other < n) y[i] = s[other * stride];
}

extern "C" __global__ void strided_bytes(const unsigned char* x, unsigned char* y, int n, int stride)
{
    strided(x, y, n, stride);
}

extern "C" __global__ void strided_halves(const short* x, short* y, int n, int stride)
{
    strided(x, y, n, stride);
}

extern "C" __global__ void strided_4(const float* x, float* y, int n, int stride)
{
    strided(x, y, n, stride);
}

extern "C" __global__ void strided_8(const float2* x, float2* y, int n, int stride)
{
    strided(x, y, n, stride);
}

extern "C" __global__ void strided_16(const float4* x, float4* y, int n, int stride)
{
    strided(x, y, n, stride);
}

extern "C" __global__ void strided_doubles(const double* x, double* y, int n, int stride)
{
    strided(x, y, n, stride);
}

// index says where each thread of a block stores, and where it loads.
extern "C" __global__ void shared_gather(const float* x, const int* index, float* y)
{
    float* s = reinterpret_cast<float*>(dynamic);
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = x[i];
    __syncthreads();
    y[i] = s[index[i]];
}

template <int WIDTH>
__device__ void transpose(const float* x, float* y, int rows, int cols)
{
    __shared__ float tile[32][WIDTH];
    const int t = threadIdx.x, left = blockIdx.x * 32, top = blockIdx.y * 32;
    #pragma unroll 1
    for (int j = threadIdx.y; j < 32; j += blockDim.y)
        if (left + t < cols && top + j < rows) tile[j][t] = x[(top + j) * cols + left + t];
    __syncthreads();
    #pragma unroll 1
    for (int j = threadIdx.y; j < 32; j += blockDim.y)
        if (left + j < cols && top + t < rows) y[(left + j) * rows + top + t] = tile[t][j];
}

extern "C" __global__ void transpose_unpadded(const float* x, float* y, int rows, int cols)
{
    transpose<32>(x, y, rows, cols);
}

extern "C" __global__ void transpose_padded(const float* x, float* y, int rows, int cols)
{
    transpose<33>(x, y, rows, cols);
}

// Threads 0, 2, 4, ... then 0, 4, 8, ... add their right neighbour.
extern "C" __global__ void tree_divergent(const float* x, float* y, int n)
{
    float* s = reinterpret_cast<float*>(dynamic);
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    #pragma unroll 1
    for (int step = 1; step < blockDim.x; step *= 2) {
        if (t % (2 * step) == 0) s[t] += s[t + step];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = s[0];
}

// The same sums by threads 0, 1, 2, ...: no divergence, but bank conflicts.
extern "C" __global__ void tree_interleaved(const float* x, float* y, int n)
{
    float* s = reinterpret_cast<float*>(dynamic);
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    #pragma unroll 1
    for (int step = 1; step < blockDim.x; step *= 2) {
        const int place = 2 * step * t;
        if (place < blockDim.x) s[place] += s[place + step];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = s[0];
}

extern "C" __global__ void tree_sequential(const float* x, float* y, int n)
{
    float* s = reinterpret_cast<float*>(dynamic);
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    #pragma unroll 1
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) s[t] += s[t + half];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = s[0];
}

extern "C" __global__ void shuffle_reduction(const float* x, float* y, int n)
{
    __shared__ float parts[32];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    float v = i < n ? x[i] : 0.0f;
    for (int offset = 16; offset; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
    if (t % 32 == 0) parts[t / 32] = v;
    __syncthreads();
    if (t >= 32) return;
    v = t < blockDim.x / 32 ? parts[t] : 0.0f;
    for (int offset = 16; offset; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
    if (t == 0) y[blockIdx.x] = v;
}

// Everybody reads one word, then groups of `group` threads read one each.
extern "C" __global__ void shared_broadcast(const float* x, float* y, int n, int group)
{
    float* s = reinterpret_cast<float*>(dynamic);
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    const float all = s[blockDim.x - 1], some = s[t / group];
    if (i < n) y[i] = all + some;
}

struct Point {
    float a, b, c;
};

extern "C" __global__ void shared_points(const float* x, float* y, int n)
{
    Point* s = reinterpret_cast<Point*>(dynamic);
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    const float v = i < n ? x[i] : 0.0f;
    s[t].a = v;
    s[t].b = 2.0f * v;
    s[t].c = 3.0f * v;
    __syncthreads();
    const Point p = s[blockDim.x - 1 - t];
    if (i < n) y[i] = p.a + 10.0f * p.b + 100.0f * p.c;
}

// Running sums of each block, in two buffers that take turns.
extern "C" __global__ void scan(const float* x, float* y, int n)
{
    float* s = reinterpret_cast<float*>(dynamic);
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t, size = blockDim.x;
    int now = 0;
    s[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    #pragma unroll 1
    for (int step = 1; step < size; step *= 2) {
        float v = s[now * size + t];
        if (t >= step) v += s[now * size + t - step];
        now ^= 1;
        s[now * size + t] = v;
        __syncthreads();
    }
    if (i < n) y[i] = s[now * size + t];
}

// Square matrices of a multiple of the tile's 16.
extern "C" __global__ void matrix_product(const float* a, const float* b, float* c, int size)
{
    __shared__ float left[16][16], right[16][16];
    const int t = threadIdx.x, row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + t;
    float sum = 0.0f;
    #pragma unroll 1
    for (int tile = 0; tile < size; tile += 16) {
        left[threadIdx.y][t] = a[row * size + tile + t];
        right[threadIdx.y][t] = b[(tile + threadIdx.y) * size + col];
        __syncthreads();
        #pragma unroll 1
        for (int k = 0; k < 16; ++k) sum += left[threadIdx.y][k] * right[k][t];
        __syncthreads();
    }
    c[row * size + col] = sum;
}

// One warp stores to s[index[lane]] and loads from there; index -1: the lane is idle. Every place
// holds its own number, so that lanes that meet store the same.
template <typename T>
__device__ void pattern(const int* index, const T* x, T* y)
{
    T* s = reinterpret_cast<T*>(dynamic);
    const int t = threadIdx.x, where = index[t];
    const T v = x[t];
    if (where >= 0) s[where] = v;
    __syncthreads();
    if (where >= 0) y[t] = s[where];
}

extern "C" __global__ void pattern_float(const int* index, const float* x, float* y)
{
    pattern(index, x, y);
}

extern "C" __global__ void pattern_float2(const int* index, const float2* x, float2* y)
{
    pattern(index, x, y);
}

extern "C" __global__ void pattern_float4(const int* index, const float4* x, float4* y)
{
    pattern(index, x, y);
}

// SPDX-License-Identifier: MIT
// Loops that the lanes of a warp leave at different iterations, as ptxas unrolls them or not. Each
// thread writes one result, so that the counters are those of the loop.

// A warp for a row, four bytes a lane.
extern "C" __global__ void row_sum(const float* x, float* y, int rows, int cols)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = lane; i < cols; i += 32) sum += x[row * cols + i];
    y[row * 32 + lane] = sum;
}

// The same, with two arrays.
extern "C" __global__ void row_dot(const float* x, const float* z, float* y, int rows, int cols)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = lane; i < cols; i += 32) sum += x[row * cols + i] * z[i];
    y[row * 32 + lane] = sum;
}

// A block for a row: the step is known at run time only.
extern "C" __global__ void block_sum(const float* x, float* y, int cols)
{
    const float* row = x + blockIdx.x * cols;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += row[i];
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// A block for a row, the step is known, and what is loaded is stored.
extern "C" __global__ void row_scale(const float* x, float* y, int cols)
{
    const float* from = x + blockIdx.x * cols;
    float* to = y + blockIdx.x * cols;
    for (int i = threadIdx.x; i < cols; i += 64) to[i] = 2.0f * from[i];
}

// The largest of a row, 64 bits of counter.
extern "C" __global__ void row_max(const float* x, float* y, long long cols)
{
    const float* row = x + blockIdx.x * cols;
    float most = 0.0f;
    for (long long i = threadIdx.x; i < cols; i += 32) most = fmaxf(most, row[i]);
    y[blockIdx.x * blockDim.x + threadIdx.x] = most;
}

// Packs of four.
extern "C" __global__ void row_packs(const float4* x, float4* y, int packs)
{
    const float4* row = x + blockIdx.x * packs;
    float4 sum = {};
    for (int i = threadIdx.x; i < packs; i += 32) {
        const float4 v = row[i];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Every lane its own row of a sparse matrix.
extern "C" __global__ void sparse_rows(const int* starts, const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (int j = starts[i]; j < starts[i + 1]; ++j) sum += x[j];
    y[i] = sum;
}

// The same through an index.
extern "C" __global__ void
sparse_times(const int* starts, const int* places, const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    const int end = starts[i + 1];
    for (int j = starts[i]; j < end; ++j) sum += x[places[j]];
    y[i] = sum;
}

// So many for each lane, counted down.
extern "C" __global__ void count_down(const float* x, const int* counts, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (int left = counts[i]; left > 0; --left) sum += x[left * n + i];
    y[i] = sum;
}

// A triangle: thread i adds i numbers.
extern "C" __global__ void triangle(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (unsigned j = 0; j <= i; ++j) sum += x[j * n + i];
    y[i] = sum;
}

// Not unrolled, as it says.
extern "C" __global__ void as_written(const float* x, float* y, int cols)
{
    const float* row = x + blockIdx.x * cols;
    float sum = 0.0f;
    #pragma unroll 1
    for (int i = threadIdx.x; i < cols; i += 32) sum += row[i];
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Unrolled by two, as it says.
extern "C" __global__ void by_two(const float* x, float* y, int cols)
{
    const float* row = x + blockIdx.x * cols;
    float sum = 0.0f;
    #pragma unroll 2
    for (int i = threadIdx.x; i < cols; i += 32) sum += row[i];
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Unrolled by eight, as it says.
extern "C" __global__ void by_eight(const float* x, float* y, int cols)
{
    const float* row = x + blockIdx.x * cols;
    float sum = 0.0f;
    #pragma unroll 8
    for (int i = threadIdx.x; i < cols; i += 32) sum += row[i];
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Nobody knows how long it takes: the end is in the data.
extern "C" __global__ void until_zero(const float* x, float* y, int cols)
{
    const float* row = x + (blockIdx.x * blockDim.x + threadIdx.x) * cols;
    float sum = 0.0f;
    for (int i = 0; row[i] != 0.0f; ++i) sum += row[i];
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// A way out in the middle.
extern "C" __global__ void find_first(const float* x, const float* z, float* y, int cols)
{
    const float* row = x + (blockIdx.x * blockDim.x + threadIdx.x) * cols;
    const float wanted = z[threadIdx.x];
    int i = 0;
    for (; i < cols; ++i)
        if (row[i] == wanted) break;
    y[blockIdx.x * blockDim.x + threadIdx.x] = i;
}

// A branch in the body.
extern "C" __global__ void some_of_them(const float* x, const float* z, float* y, int cols)
{
    const float* row = x + blockIdx.x * cols;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 32)
        if (row[i] > 50.0f) sum += z[i];
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// A long body.
extern "C" __global__ void long_body(const float* x, float* y, int cols)
{
    const float* row = x + blockIdx.x * cols;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 32) {
        float v = row[i];
        #pragma unroll
        for (int k = 1; k <= 12; ++k) v = fmaxf(v, 2.0f * v - 4.0f * k);
        sum += v;
    }
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Online softmax of a row, as in the series.
extern "C" __global__ void online(const float* x, float* y, int cols)
{
    const float* row = x + blockIdx.x * cols;
    float most = 0.0f, sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 32) {
        const float v = row[i], larger = fmaxf(most, v);
        sum = sum * (most - larger + 1.0f) + v;
        most = larger;
    }
    y[blockIdx.x * blockDim.x + threadIdx.x] = most;
}

// Shared memory: what is loaded from global memory is as in row_scale.
extern "C" __global__ void through_shared(const float* x, float* y, int cols)
{
    extern __shared__ float s[];
    const float* row = x + blockIdx.x * cols;
    for (int i = threadIdx.x; i < cols; i += 32) s[i] = row[i];
    __syncthreads();
    float sum = 0.0f;
    for (int i = 31 - threadIdx.x; i < cols; i += 32) sum += s[i];
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// A loop in a loop, both ragged.
extern "C" __global__ void nested(const float* x, float* y, int rows, int cols)
{
    float sum = 0.0f;
    for (int row = threadIdx.x / 8; row < rows; row += 4)
        for (int i = threadIdx.x % 8; i < cols; i += 8) sum += x[row * cols + i];
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// row_scale whose arrays are said to be apart.
extern "C" __global__ void
row_scale_apart(const float* __restrict__ x, float* __restrict__ y, int cols)
{
    const float* from = x + blockIdx.x * cols;
    float* to = y + blockIdx.x * cols;
    for (int i = threadIdx.x; i < cols; i += 64) to[i] = 2.0f * from[i];
}

// Stores alone.
extern "C" __global__ void fill(float* y, int cols)
{
    float* row = y + blockIdx.x * cols;
    for (int i = threadIdx.x; i < cols; i += 32) row[i] = i;
}

// Bytes of a row.
extern "C" __global__ void row_bytes(const unsigned char* x, int* y, int cols)
{
    const unsigned char* row = x + blockIdx.x * cols;
    int sum = 0;
    for (unsigned i = threadIdx.x; i < cols; i += 32) sum += row[i];
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Two passes over a row, as a softmax makes them.
extern "C" __global__ void two_passes(const float* x, float* y, int cols)
{
    const float* row = x + blockIdx.x * cols;
    float most = 0.0f, sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 32) most = fmaxf(most, row[i]);
    for (int i = threadIdx.x; i < cols; i += 32) sum += __expf(row[i] - most);
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum > 0.0f ? most : 0.0f;
}

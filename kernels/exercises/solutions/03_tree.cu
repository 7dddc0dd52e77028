// SPDX-License-Identifier: MIT
// Idea:     a tree in shared memory merges the pairs of 96 threads
// Row:      one block
// Launch:   block = 96, grid = rows
// Shared:   8 * block
// Columns:  cols >= 1
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    2 reads + 1 write
// Wastes:   a store, a load and a barrier for every level of the tree
// Measured: no, this is an exercise

// Makes the pair (row_max, sum) describe the columns of both pairs.
__device__ __forceinline__ void merge(float& row_max, float& sum, float other_max, float other_sum)
{
    const float new_max = fmaxf(row_max, other_max);
    sum = sum * expf(row_max - new_max) + other_sum * expf(other_max - new_max);
    row_max = new_max;
}

extern "C" __global__ void softmax_tree(const float* __restrict__ x, float* __restrict__ y,
                                        int rows, int cols)
{
    extern __shared__ float pairs[];  // 8 bytes per thread
    float* maxima = pairs;
    float* sums = pairs + blockDim.x;

    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;

    float row_max = -3.402823466e+38f;  // finite: see 02_online.cu
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x)
        merge(row_max, sum, x[col], 1.0f);
    maxima[threadIdx.x] = row_max;
    sums[threadIdx.x] = sum;

    // ---- write here ----
    __syncthreads();
    for (int live = blockDim.x; live > 1;) {
        const int half = (live + 1) / 2;
        const int other = threadIdx.x + half;
        if (other < live)
            merge(maxima[threadIdx.x], sums[threadIdx.x], maxima[other], sums[other]);
        live = half;
        __syncthreads();
    }

    row_max = maxima[0];
    sum = sums[0];
    for (int col = threadIdx.x; col < cols; col += blockDim.x)
        y[col] = expf(x[col] - row_max) / sum;
}

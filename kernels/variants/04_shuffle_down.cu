// SPDX-License-Identifier: MIT
// Idea:     04_shuffle with shuffles that go down: one lane ends up with the result, and hands it
//           to the others through shared memory, behind a second barrier.
// Row:      one block
// Launch:   block = 256, block % 32 == 0, grid = rows
// Shared:   0
// Columns:  cols >= 1
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    2 reads + 1 write
// Wastes:   a barrier and a broadcast that a butterfly does without.
// Measured: 2342 GB/s, 0.55 of a copy at 65536 x 4096 (H200, 2026-11-21)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch.

// Makes the pair (row_max, sum) describe the columns of both pairs.
__device__ __forceinline__ void merge(float& row_max, float& sum, float other_max, float other_sum)
{
    const float new_max = fmaxf(row_max, other_max);
    sum = sum * expf(row_max - new_max) + other_sum * expf(other_max - new_max);
    row_max = new_max;
}

// The largest of 32 lanes' values, in lane 0; what the other lanes hold is of no use.
__device__ __forceinline__ float warp_max(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_down_sync(0xffffffff, value, distance));
    return value;
}

// The sum of 32 lanes' values, in lane 0.
__device__ __forceinline__ float warp_sum(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_down_sync(0xffffffff, value, distance);
    return value;
}

extern "C" __global__ void softmax_shuffle_down(const float* __restrict__ x, float* __restrict__ y,
                                                int rows, int cols)
{
    __shared__ float maxima[32];  // a block has at most 32 warps
    __shared__ float sums[32];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;

    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu
    float row_max = lowest;
    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += blockDim.x)
        merge(row_max, sum, x[col], 1.0f);

    const float thread_max = row_max;
    row_max = __shfl_sync(0xffffffff, warp_max(thread_max), 0);  // every lane rescales to it
    sum = warp_sum(sum * expf(thread_max - row_max));
    if (lane == 0) {
        maxima[warp] = row_max;
        sums[warp] = sum;
    }
    __syncthreads();

    if (warp == 0) {
        const bool exists = lane < blockDim.x / 32;
        const float warp_maximum = exists ? maxima[lane] : lowest;
        row_max = __shfl_sync(0xffffffff, warp_max(warp_maximum), 0);
        sum = warp_sum(exists ? sums[lane] * expf(warp_maximum - row_max) : 0.0f);
        if (lane == 0) {
            maxima[0] = row_max;
            sums[0] = sum;
        }
    }
    __syncthreads();
    row_max = maxima[0];
    sum = sums[0];

    for (int col = threadIdx.x; col < cols; col += blockDim.x)
        y[col] = expf(x[col] - row_max) / sum;
}

// SPDX-License-Identifier: MIT
// Idea:     every access of a lane moves 16 bytes
// Row:      one warp
// Launch:   block = 32, grid = rows
// Shared:   0
// Columns:  cols >= 4 && cols % 4 == 0
// Align:    16
// Dtype:    float32
// Arch:     sm_75
// Reads:    2 reads + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 10 minutes. Write two passes over the row, with four columns per access.

// Makes the pair (row_max, sum) describe the columns of both pairs.
__device__ __forceinline__ void merge(float& row_max, float& sum, float other_max, float other_sum)
{
    const float new_max = fmaxf(row_max, other_max);
    sum = sum * expf(row_max - new_max) + other_sum * expf(other_max - new_max);
    row_max = new_max;
}

extern "C" __global__ void softmax_vector_loop(const float* __restrict__ x, float* __restrict__ y,
                                               int rows, int cols)
{
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;

    float row_max = -3.402823466e+38f;  // finite: see 02_online.cu
    float sum = 0.0f;

    // The pair (row_max, sum) of this lane's columns.
    // ---- write here ----

    for (int distance = 16; distance > 0; distance /= 2) {
        const float other_max = __shfl_xor_sync(0xffffffff, row_max, distance);
        const float other_sum = __shfl_xor_sync(0xffffffff, sum, distance);
        merge(row_max, sum, other_max, other_sum);
    }

    // The result, exp(x - row_max) / sum.
    // ---- and here ----
}

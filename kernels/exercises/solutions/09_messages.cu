// SPDX-License-Identifier: MIT
// Idea:     two blocks anywhere on the GPU share a row and write messages to each other
// Row:      two blocks of one warp each
// Launch:   block = 32, grid = 2 * rows, cooperative
// Shared:   0
// Workspace: 8 * 2 * rows
// Columns:  cols >= 1 && rows <= 64
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    2 reads + 1 write
// Wastes:   the block does nothing else while the message is in flight
// Measured: no, this is an exercise

// Makes the pair (row_max, sum) describe the columns of both pairs.
__device__ __forceinline__ void merge(float& row_max, float& sum, float other_max, float other_sum)
{
    const float new_max = fmaxf(row_max, other_max);
    sum = sum * expf(row_max - new_max) + other_sum * expf(other_max - new_max);
    row_max = new_max;
}

using Message = unsigned long long;  // the bits of sum and of row_max; never all zero

__device__ __forceinline__ Message written(float row_max, float sum)
{
    return (Message)__float_as_uint(sum) << 32 | __float_as_uint(row_max);
}

extern "C" __global__ void softmax_messages(const float* __restrict__ x, float* __restrict__ y,
                                           int rows, int cols, Message* workspace)
{
    const int row = blockIdx.x / 2;
    const int rank = blockIdx.x % 2;  // 0: the left half of the row, 1: the right half
    const int middle = (cols + 1) / 2;
    const int first = rank == 0 ? 0 : middle;
    const int last = rank == 0 ? middle : cols;

    x += (long long)row * cols;
    y += (long long)row * cols;

    float row_max = -3.402823466e+38f;  // finite: see 02_online.cu
    float sum = 0.0f;
    for (int col = first + threadIdx.x; col < last; col += 32)
        merge(row_max, sum, x[col], 1.0f);

    for (int distance = 16; distance > 0; distance /= 2) {
        const float other_max = __shfl_xor_sync(0xffffffff, row_max, distance);
        const float other_sum = __shfl_xor_sync(0xffffffff, sum, distance);
        merge(row_max, sum, other_max, other_sum);
    }

    // Every block has a slot for one message; 0 means empty. The slots are empty before the
    // launch and must be empty after it. Volatile: each poll is a load.
    volatile Message* own_slot = workspace + blockIdx.x;
    volatile Message* other_slot = workspace + (blockIdx.x ^ 1);
    Message message = 0;
    if (threadIdx.x == 0) {
        *other_slot = written(row_max, sum);
        while (message == 0) message = *own_slot;
        *own_slot = 0;  // for the next launch
    }
    message = __shfl_sync(0xffffffff, message, 0);
    merge(row_max, sum, __uint_as_float((unsigned)message), __uint_as_float(message >> 32));

    for (int col = first + threadIdx.x; col < last; col += 32)
        y[col] = expf(x[col] - row_max) / sum;
}

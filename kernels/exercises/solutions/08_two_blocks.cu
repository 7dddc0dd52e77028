// SPDX-License-Identifier: MIT
// Idea:     two blocks of a cluster share a row and read each other's pair (row_max, sum)
// Row:      two blocks of one warp each
// Launch:   block = 32, grid = 2 * rows
// Shared:   0
// Columns:  cols >= 1
// Align:    4
// Dtype:    float32
// Arch:     sm_90
// Reads:    2 reads + 1 write
// Wastes:   waits at the second barrier, although only its end must wait for the other block
// Measured: no, this is an exercise

// Makes the pair (row_max, sum) describe the columns of both pairs.
__device__ __forceinline__ void merge(float& row_max, float& sum, float other_max, float other_sum)
{
    const float new_max = fmaxf(row_max, other_max);
    sum = sum * expf(row_max - new_max) + other_sum * expf(other_max - new_max);
    row_max = new_max;
}

// The address, in block `rank` (0 or 1), that corresponds to `own` in this block.
__device__ __forceinline__ const float2* in_block(const float2* own, int rank)
{
    const float2* there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
    return there;
}

// No thread continues before all threads of both blocks have arrived.
__device__ __forceinline__ void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(2)
softmax_two_blocks(const float* __restrict__ x, float* __restrict__ y, int rows, int cols)
{
    __shared__ float2 pair;  // (row_max, sum) of this block's half
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

    if (threadIdx.x == 0) pair = make_float2(row_max, sum);
    cluster_barrier();  // both pairs are written
    const float2 other = *in_block(&pair, 1 - rank);
    merge(row_max, sum, other.x, other.y);
    cluster_barrier();  // both pairs are read: shared memory ends with its block

    for (int col = first + threadIdx.x; col < last; col += 32)
        y[col] = expf(x[col] - row_max) / sum;
}

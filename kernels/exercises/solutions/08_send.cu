// SPDX-License-Identifier: MIT
// Idea:     four blocks of a cluster share a row and send each other their pairs (row_max, sum)
// Row:      four blocks of one warp each
// Launch:   block = 32, grid = 4 * rows
// Shared:   0
// Columns:  cols >= 1
// Align:    4
// Dtype:    float32
// Arch:     sm_90
// Reads:    2 reads + 1 write
// Wastes:   waits at both barriers; 08_cluster.cu waits only for the pairs
// Measured: no, this is an exercise

// Makes the pair (row_max, sum) describe the columns of both pairs.
__device__ __forceinline__ void merge(float& row_max, float& sum, float other_max, float other_sum)
{
    const float new_max = fmaxf(row_max, other_max);
    sum = sum * expf(row_max - new_max) + other_sum * expf(other_max - new_max);
    row_max = new_max;
}

// Stores a pair in the variable of block `rank`, 0 to 3, that corresponds to this block's `*slot`.
__device__ __forceinline__ void send(float2* slot, int rank, float2 pair)
{
    float2* there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(slot), "r"(rank));
    *there = pair;
}

// No thread continues before all threads of the four blocks have arrived.
__device__ __forceinline__ void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(4)
softmax_send(const float* __restrict__ x, float* __restrict__ y, int rows, int cols)
{
    __shared__ float2 slots[4];  // one per block; usable once all blocks have started
    const int row = blockIdx.x / 4;
    const int rank = blockIdx.x % 4;  // index in the cluster: this block has a quarter of the row
    const int quarter = (cols + 3) / 4;
    const int first = min(rank * quarter, cols);
    const int last = min(first + quarter, cols);

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

    // In each block, slots[k] is for the pair of block k. Fill the slots of all four blocks.
    // ---- write here ----
    cluster_barrier();  // all blocks have started
    if (threadIdx.x < 4) send(&slots[rank], threadIdx.x, make_float2(row_max, sum));
    cluster_barrier();  // all pairs have arrived

    for (int other = 0; other < 4; ++other)
        if (other != rank) merge(row_max, sum, slots[other].x, slots[other].y);

    for (int col = first + threadIdx.x; col < last; col += 32)
        y[col] = expf(x[col] - row_max) / sum;
}

// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: barriers of a whole grid, and groups of threads.
// See tests/simt/features.

#include <cooperative_groups.h>

namespace groups = cooperative_groups;

__device__ void grid_barrier(unsigned* arrived, unsigned goal)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1);
        while (*(volatile unsigned*)arrived < goal) {
        }
        __threadfence();
    }
    __syncthreads();
}

// In each round an element takes the value of one that another block wrote in the round before.
extern "C" __global__ void barrier_by_hand(volatile int* a, volatile int* b, unsigned* arrived,
                                           int rounds)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    for (int round = 0; round < rounds; ++round) {
        volatile int* from = round % 2 ? b : a;
        volatile int* to = round % 2 ? a : b;
        to[i] = 2 * from[(i + blockDim.x + 1) % n] + from[i];
        grid_barrier(arrived, (round + 1) * gridDim.x);
    }
}

// Each element as a share of the sum over the grid.
extern "C" __global__ void grid_sync(const float* x, float* y, float* partial)
{
    __shared__ float sum;
    const groups::grid_group grid = groups::this_grid();
    const int t = threadIdx.x, i = (int)grid.thread_rank();
    if (t == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, x[i]);
    __syncthreads();
    if (t == 0) partial[blockIdx.x] = sum;
    grid.sync();
    float total = 0;
    for (int b = 0; b < gridDim.x; ++b) total += partial[b];
    grid.sync();
    if (t == 0) partial[blockIdx.x] = total;
    grid.sync();
    y[i] = x[i] / partial[gridDim.x - 1 - blockIdx.x] + (grid.is_valid() ? 0.0f : 100.0f);
}

// Tiles of eight lanes add up, and vote.
extern "C" __global__ void tiles(const int* x, int* y)
{
    const groups::thread_block block = groups::this_thread_block();
    const groups::thread_block_tile<8> tile = groups::tiled_partition<8>(block);
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int v = x[i];
    for (int offset = tile.size() / 2; offset > 0; offset /= 2) v += tile.shfl_xor(v, offset);
    block.sync();
    y[i] = 100 * v + 10 * tile.any(x[i] == 13) + (int)tile.thread_rank();
}

// The threads that take a branch form a group, of which one adds for all.
extern "C" __global__ void coalesced(const int* x, int* y, int* count, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] % 5 == 0) {
        const groups::coalesced_group active = groups::coalesced_threads();
        int first = 0;
        if (active.thread_rank() == 0) first = atomicAdd(count, (int)active.size());
        y[active.shfl(first, 0) + active.thread_rank()] = x[i];
    }
}

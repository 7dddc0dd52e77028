// SPDX-License-Identifier: MIT
// Reductions with cooperative groups: one value per block, and one of the whole grid in a single
// cooperative launch, in which all blocks meet before the first one adds up their results.

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

constexpr int MAX_WARPS = 32;

template <typename T, typename Op>
__device__ T reduce_block(cg::thread_block block, T value, T identity, Op op)
{
    __shared__ T partial[MAX_WARPS];
    auto warp = cg::tiled_partition<32>(block);

    value = cg::reduce(warp, value, op);
    if (warp.thread_rank() == 0) partial[warp.meta_group_rank()] = value;
    block.sync();  // every warp has stored its part

    if (warp.meta_group_rank() == 0) {
        const unsigned int rank = warp.thread_rank();
        value = rank < warp.meta_group_size() ? partial[rank] : identity;
        value = cg::reduce(warp, value, op);
    }
    return value;  // of the whole block in its first warp
}

extern "C" __global__ void sum_blocks(const float* x, float* sums, int n)
{
    auto block = cg::this_thread_block();
    const int i = block.group_index().x * block.size() + block.thread_rank();
    const float sum = reduce_block(block, i < n ? x[i] : 0.0f, 0.0f, cg::plus<float>());
    if (block.thread_rank() == 0) sums[block.group_index().x] = sum;
}

extern "C" __global__ void max_blocks(const int* x, int* largest, int n)
{
    auto block = cg::this_thread_block();
    const int lowest = -2147483647 - 1;
    const int i = block.group_index().x * block.size() + block.thread_rank();
    const int most = reduce_block(block, i < n ? x[i] : lowest, lowest, cg::greater<int>());
    if (block.thread_rank() == 0) largest[block.group_index().x] = most;
}

extern "C" __global__ void sum_grid(const float* x, float* partial, float* total, int n)
{
    auto grid = cg::this_grid();
    auto block = cg::this_thread_block();

    float mine = 0.0f;
    for (int i = grid.thread_rank(); i < n; i += grid.size())
        mine += x[i];
    const float sum = reduce_block(block, mine, 0.0f, cg::plus<float>());
    if (block.thread_rank() == 0) partial[block.group_index().x] = sum;

    grid.sync();  // every block has stored its sum

    if (block.group_index().x == 0) {
        auto warp = cg::tiled_partition<32>(block);
        if (warp.meta_group_rank() > 0) return;
        float all = 0.0f;
        for (int b = warp.thread_rank(); b < gridDim.x; b += warp.size())
            all += partial[b];
        all = cg::reduce(warp, all, cg::plus<float>());
        if (warp.thread_rank() == 0) *total = all;
    }
}

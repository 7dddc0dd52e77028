// SPDX-License-Identifier: MIT
// Idea:     columns along another axis that no cluster holds: a group of blocks reads whole slices
//           twice, 16 bytes at a time. In between, the blocks exchange the pairs of all columns in
//           global memory; a slot holds the pair of a block, and then the result of the column.
// Computes: softmax_any_axis
// Row:      BLOCKS blocks
// Build:    slice    = dim * inner * size
//           width    = 16 / size
//           period   = inner / width when inner % width == 0
//                    | inner
//           target   = min(1024, 6144 / width)
//           MEMBERS  = period * (target / period) when period <= target
//                    | ceil_div(period, ceil_div(period, target))
//           THREADS  = 32 * ceil_div(MEMBERS, 32)
//           UNROLL   = 4
//           sm_bytes = 233472 when capability >= 90 && capability < 120
//                    | 102400
//           groups   = min(sms, max(1, min(outer, l2 / slice)))
//           BLOCKS   = min(sms / ceil_div(outer, ceil_div(outer, groups)),
//                          ceil_div(slice, 16 * max(period, MEMBERS)))
// Launch:   block = THREADS, block == THREADS,
//           grid = min(outer, sms / BLOCKS) * BLOCKS, cooperative
// Shared:   8 * inner
// Workspace: 8 * outer * inner * BLOCKS
// Columns:  (MEMBERS < period || MEMBERS % period == 0) && MEMBERS >= 1 && THREADS <= 1024
//           && 8 * (inner + width * MEMBERS) + 1024 <= sm_bytes
//           && BLOCKS >= 1 && BLOCKS <= sms && slice / size <= 2147483647
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_80
// Reads:    2 reads + 1 write
// Wastes:   what is no longer in the L2 cache is read from memory again; while blocks exchange
//           pairs, they move nothing.
// Measured: 1596 GB/s, 0.37 of a copy at 8 x 8192 x 4096 bfloat16 (H200, 2026-11-29)
//
// y[o, :, i] = softmax(x[o, :, i]) for x and y of shape (outer, dim, inner), row-major. y must not
// overlap x. Lines, slices, columns and pairs are those of 13_any_axis.cu. A column of all -inf, or
// one with NaN or +inf, gives NaN, as in PyTorch. The workspace must hold zeros before the first
// launch, and every launch leaves zeros: see 09_grid.cu, also for launches that are aborted or run
// at the same time. Measured with -ftz=true, as CuPy compiles.

#if !defined(MEMBERS) || !defined(THREADS) || !defined(UNROLL) || !defined(BLOCKS)
#error "compile with all macros of the Build table: -DMEMBERS=500 -DTHREADS=512 -DUNROLL=4 \
-DBLOCKS=132"
#endif

#include "include/cache_hints.cuh"
#include "include/grid_exchange.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"

static_assert(THREADS >= MEMBERS && THREADS % 32 == 0, "a block is whole warps");
static_assert(8 * width * MEMBERS <= 49152, "at most 48 KB can be declared");
static_assert(BLOCKS >= 1 && UNROLL >= 1, "blocks of a slice, packs at a time");

constexpr int warps = THREADS / 32;
constexpr Message answered = 1ull << 63;  // the sign of a sum, which no pair has

__device__ __forceinline__ float2 merge(float2 a, float2 b)
{
    const float largest = fmaxf(a.x, b.x);
    return make_float2(largest, a.y * fast_exp(a.x - largest) + b.y * fast_exp(b.x - largest));
}

// A warp waits until all blocks have put the pair of a column into its slots, and answers there
// with the maximum and 1 / sum of the whole column.
__device__ __forceinline__ void answer(Message* slots, int lane)
{
    constexpr int rounds = (BLOCKS + 31) / 32;
    Message messages[rounds];
    for (bool waits = true; waits;) {
        waits = false;
#pragma unroll
        for (int i = 0; i < rounds; ++i) {
            messages[i] = message_of(make_float2(lowest, 0.0f));  // no such block
            if (lane + 32 * i < BLOCKS) messages[i] = load_relaxed(slots + lane + 32 * i);
            waits = waits || !messages[i];
        }
    }
    __syncwarp();
    float2 pair = pair_of(messages[0]);
#pragma unroll
    for (int i = 1; i < rounds; ++i) pair = merge(pair, pair_of(messages[i]));
    pair = warp_pair(pair.x, pair.y);
    const Message whole = message_of(make_float2(pair.x, 1.0f / pair.y)) | answered;
    for (int block = lane; block < BLOCKS; block += 32) store_relaxed(slots + block, whole);
}

// ---- the kernel ---------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
softmax_long_columns(const T* __restrict__ x, T* __restrict__ y, int outer, int dim, int inner,
                     Message* workspace)
{
    extern __shared__ float2 columns[];                    // of the slice: a pair of each
    __shared__ alignas(16) float2 pairs[MEMBERS * width];  // of each thread and column
    const int member = blockIdx.x % BLOCKS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // After so many packs columns repeat. Blocks take spans round-robin, a thread the same packs of
    // each: so all of them are in the same columns. A span of more packs than threads takes several
    // rounds.
    const int period = inner % width == 0 ? inner / width : inner;
    const int span = max(period, MEMBERS), step = BLOCKS * span;

    for (int slice = blockIdx.x / BLOCKS; slice < outer; slice += gridDim.x / BLOCKS) {
        // A slice has packs, and up to width - 1 elements before and after, one per lane of a warp.
        const long long elements = (long long)dim * inner, begin = slice * elements;
        const int head = (int)(-begin & (width - 1));  // elements before the first pack
        const int end = (int)((elements - head) / width);  // of the packs
        const uint4* from = reinterpret_cast<const uint4*>(x + begin + head);
        uint4* to = reinterpret_cast<uint4*>(y + begin + head);
        const auto load = [&](Pack (&v)[UNROLL], int pack) {
#pragma unroll
            for (int k = 0; k < UNROLL; ++k) {
                fill(v[k], minus_inf());
                if (pack + k * step < end) v[k].bits = from[pack + k * step];
            }
        };
        const auto column_of = [&](int element) { return (element + head) % inner; };
        const long long edge = lane < head ? lane : lane + (long long)end * width;
        const bool has_edge = member == 0 && warp == 0 && edge < elements;
        const float v_edge = has_edge ? to_float(x[begin + edge]) : 0.0f;

        // ---- reduce -----------------------------------------------------------------------------
        for (int c = threadIdx.x; c < inner; c += THREADS) columns[c] = make_float2(lowest, 0.0f);
        for (int round = 0; round < span; round += MEMBERS) {
            const int first = round + threadIdx.x;
            const bool takes = threadIdx.x < MEMBERS && first < span;
            float largest[width], sum[width];
#pragma unroll
            for (int c = 0; c < width; ++c) largest[c] = lowest, sum[c] = 0.0f;
            for (int pack = member * span + first; takes && pack < end; pack += UNROLL * step) {
                Pack v[UNROLL];
                load(v, pack);
#pragma unroll
                for (int c = 0; c < width; ++c) {
                    float values[UNROLL], before = largest[c];
#pragma unroll
                    for (int k = 0; k < UNROLL; ++k) {
                        const float2 two = to_float2(v[k].columns[c / 2]);
                        values[k] = c % 2 ? two.y : two.x;
                        largest[c] = fmaxf(largest[c], values[k]);
                    }
                    sum[c] *= fast_exp(before - largest[c]);
#pragma unroll
                    for (float value : values) sum[c] += fast_exp(value - largest[c]);
                }
            }
            // Pairs that are `inner` apart are of one column: halve their number until all are of
            // different columns.
            if (takes)
#pragma unroll
                for (int c = 0; c < width; ++c)
                    pairs[threadIdx.x * width + c] = make_float2(largest[c], sum[c]);
            __syncthreads();
            int count = min(MEMBERS, span - round) * width;
            while (count > inner) {
                const int half = (count + 2 * inner - 1) / (2 * inner) * inner;
                for (int i = threadIdx.x; i < count - half; i += THREADS)
                    pairs[i] = merge(pairs[i], pairs[i + half]);
                __syncthreads();
                count = half;
            }
            for (int i = threadIdx.x; i < count; i += THREADS) {
                float2& pair = columns[column_of(round * width + i)];
                pair = merge(pair, pairs[i]);
            }
            __syncthreads();
        }

        for (int i = 0; member == 0 && warp == 0 && i < 2 * width - 2; ++i) {  // in turn
            if (lane == i && has_edge) {
                float2& pair = columns[edge % inner];
                pair = merge(pair, make_float2(v_edge, 1.0f));
            }
            __syncwarp();
        }
        __syncthreads();

        // ---- exchange ---------------------------------------------------------------------------
        // This block's pair of each column goes into its slot; a block per column answers.
        Message* slots = workspace + (long long)slice * inner * BLOCKS;
        for (int c = threadIdx.x; c < inner; c += THREADS)
            store_relaxed(slots + (long long)c * BLOCKS + member, message_of(columns[c]));
        for (int c = member + warp * BLOCKS; c < inner; c += warps * BLOCKS)
            answer(slots + (long long)c * BLOCKS, lane);
        for (int c = threadIdx.x; c < inner; c += THREADS) {
            Message* own_slot = slots + (long long)c * BLOCKS + member;
            Message message = 0;
            while (!(message & answered)) message = load_relaxed(own_slot);
            store_relaxed(own_slot, 0);
            columns[c] = pair_of(message & ~answered);
        }
        __syncthreads();

        // ---- write ------------------------------------------------------------------------------
        // In the opposite order: what was read last may still be in the L2 cache.
        for (int round = (span - 1) / MEMBERS * MEMBERS; round >= 0; round -= MEMBERS) {
            const int first = round + threadIdx.x, start = member * span + first;
            if (threadIdx.x >= MEMBERS || first >= span) continue;
            float2 found[width];  // maximum and 1 / sum
#pragma unroll
            for (int c = 0; c < width; ++c) found[c] = columns[column_of(first * width + c)];
            int pack = start + (end - start) / (UNROLL * step) * (UNROLL * step);
            for (; pack >= start; pack -= UNROLL * step) {
                Pack v[UNROLL];
                load(v, pack);
#pragma unroll
                for (int k = 0; k < UNROLL; ++k) {
#pragma unroll
                    for (int c = 0; c < width; c += 2) {
                        const float2 two = to_float2(v[k].columns[c / 2]);
                        v[k].columns[c / 2] = to_T2(
                            make_float2(fast_exp(two.x - found[c].x) * found[c].y,
                                        fast_exp(two.y - found[c + 1].x) * found[c + 1].y));
                    }
                    if (pack + k * step < end) store<true>(to + pack + k * step, v[k].bits);
                }
            }
        }
        if (has_edge) {
            const float2 column = columns[edge % inner];
            y[begin + edge] = to_T(fast_exp(v_edge - column.x) * column.y);
        }
        __syncthreads();
    }
}

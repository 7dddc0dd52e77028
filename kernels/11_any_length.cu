// SPDX-License-Identifier: MIT
// Idea:     unaligned rows of any length: co-resident blocks share a row and exchange messages; the
//           part of the row that their registers hold is read once, the rest twice.
// Row:      BLOCKS blocks
// Build:    in_l2    = ceil_div(2 * sms * row, l2)
//           few      = max(1, sms / rows)
//           BLOCKS   = min(min(sms, ceil_div(row, 16384)), max(in_l2, few))
//           THREADS  = 256 when row <= 16384
//                    | 512
//           share    = ceil_div(row / 16, BLOCKS * THREADS)
//           PACKS    = max(1, min(16, share))
// Launch:   block = THREADS, block == THREADS,
//           grid = min(rows, sms / BLOCKS) * BLOCKS, cooperative
// Shared:   0
// Workspace: 8 * rows * BLOCKS * BLOCKS
// Columns:  BLOCKS <= sms && PACKS <= 16
// Align:    size
// Strides:  x_stride, y_stride
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 to 2 reads + 1 write
// Wastes:   what is read twice; while a row waits for messages its multiprocessors load nothing.
// Measured: 3143 GB/s, 0.73 of a copy at 2092 x 128257 (H200, 2026-11-27)
//
// y[row] = softmax(x[row]); row r of x begins at x + r * x_stride, of y at y + r * y_stride, with
// any alignment. y must not overlap x; memory between rows is neither read nor written. A row of
// all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. The workspace is that of 09_grid.cu:
// zeros before the first launch and after each, one per stream. Measured with -ftz=true, as
// CuPy compiles.

#if !defined(BLOCKS) || !defined(THREADS) || !defined(PACKS)
#error "compile with all macros of the Build table: -DBLOCKS=8 -DTHREADS=512 -DPACKS=16"
#endif

#include "include/grid_exchange.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"
#include "include/unaligned.cuh"

static_assert(THREADS >= 64 && THREADS <= 1024 && THREADS % 32 == 0, "THREADS: 64, 96, ... 1024");
static_assert(BLOCKS >= 1, "BLOCKS must be at least 1");

constexpr int warps = THREADS / 32;

// ---- a warp's packs -----------------------------------------------------------------------------

// Writes a warp's packs of one round, `late` columns past a 16-byte boundary.
__device__ __forceinline__ void store_round(T* to, int late, const Pack& v, int pack, int count,
                                            uint4& previous)
{
    if (late == 0) {
        if (pack < count) reinterpret_cast<uint4*>(to)[pack] = v.bits;
    } else {
        store_late(to + (long long)pack * width, late, v, pack < count, pack == 0 && count > 0,
                   pack == count - 1, previous);
    }
}

// Returns pack number `pack` of a warp, or -inf past the warp's last pack.
__device__ __forceinline__ uint4 load(const uint4* body, int pack, int count)
{
    Pack found;
    fill(found, minus_inf());
    if (pack < count) found.bits = __ldg(body + pack);
    return found.bits;
}

// ---- the kernel ---------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_any_length(const T* __restrict__ x, T* __restrict__ y, int rows, int cols,
                   long long x_stride, long long y_stride, Message* workspace)
{
    __shared__ float2 pairs[warps];
    __shared__ float2 row_pair;
    const int member = blockIdx.x % BLOCKS;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    for (long long row = blockIdx.x / BLOCKS; row < rows; row += gridDim.x / BLOCKS) {
        // Head, body and tail as in 11_any_row.cu. Each warp takes consecutive packs, 32 per round;
        // those of the first PACKS rounds stay in its registers.
        const T* from = x + row * x_stride;
        T* to = y + row * y_stride;
        const int head = min(cols, int((16 - (unsigned long long)from % 16) % 16 / sizeof(T)));
        const int packs = (cols - head) / width;
        const int ends = cols - packs * width;
        const int end = threadIdx.x + (threadIdx.x < head ? 0 : packs * width);
        const bool has_end = member == 0 && threadIdx.x < ends;
        const int rounds = (packs + BLOCKS * THREADS - 1) / (BLOCKS * THREADS);
        const long long first = (long long)(member * warps + warp) * rounds * 32;
        const int count = (int)max(0LL, min(packs - first, rounds * 32LL));  // packs of this warp
        const uint4* body = reinterpret_cast<const uint4*>(from + head) + first;

        // ---- read, reduce: the running maximum and sum of 02_online.cu, some rounds at a time ---
        Pack v[PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; ++k) v[k].bits = load(body, k * 32 + lane, count);
        const float v_end = has_end ? to_float(from[end]) : minus_inf();
        float thread_max = fmaxf(fmaxf(lowest, v_end), max_of(v));
        float sum = fast_exp(v_end - thread_max) + sum_of<false>(v, thread_max);
        for (int round = PACKS; round < rounds; round += 4) {
            Pack more[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) more[k].bits = load(body, (round + k) * 32 + lane, count);
            const float before = thread_max;
            thread_max = fmaxf(thread_max, max_of(more));
            sum = sum * fast_exp(before - thread_max) + sum_of<false>(more, thread_max);
        }
        const float2 pair = warp_pair(thread_max, sum);
        if (lane == 0) pairs[warp] = pair;
        __syncthreads();

        // ---- exchange: as in 09_grid.cu ---------------------------------------------------------
        if (warp == 0) {
            float2 all = merge_pairs(pairs, warps);
            if (BLOCKS > 1) {
                Message* slots = workspace + row * BLOCKS * BLOCKS;
                const Message message = message_of(all);
                for (int to_block = lane; to_block < BLOCKS; to_block += 32)
                    store_relaxed(slots + to_block * BLOCKS + member, message);
                Message* own_slots = slots + member * BLOCKS;
                float largest = lowest, part = 0.0f;
                for (int slot = lane; slot < BLOCKS; slot += 32) {
                    Message found = 0;
                    while (!found) found = load_relaxed(own_slots + slot);
                    store_relaxed(own_slots + slot, 0);
                    const float2 other = pair_of(found);
                    const float larger = fmaxf(largest, other.x);
                    part = part * fast_exp(largest - larger) + other.y * fast_exp(other.x - larger);
                    largest = larger;
                }
                __syncwarp();
                all = warp_pair(largest, part);
            }
            if (lane == 0) row_pair = all;
        }
        __syncthreads();

        // ---- write, after a second read of the packs that registers did not hold ----------------
        const float factor = fast_exp(thread_max - row_pair.x) / row_pair.y;
        T* to_body = to + head + first * width;
        const int late = (unsigned long long)to_body % 16 / sizeof(T);
        uint4 previous = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            finish<false>(v[k], thread_max, factor);
            store_round(to_body, late, v[k], k * 32 + lane, count, previous);
        }
        for (int round = PACKS; round < rounds; round += 4) {
            Pack more[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) more[k].bits = load(body, (round + k) * 32 + lane, count);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                finish<false>(more[k], thread_max, factor);
                store_round(to_body, late, more[k], (round + k) * 32 + lane, count, previous);
            }
        }
        if (has_end) to[end] = to_T(fast_exp(v_end - thread_max) * factor);
        __syncthreads();  // not needed: the other two order all uses of pairs and of row_pair
    }
}

// SPDX-License-Identifier: MIT
// Idea:     the gradient of cross-entropy from x and two statistics per row: no column waits for
//           another, so that no row has to be kept, and dx may take the place of x.
// Computes: cross_entropy_backward
// Row:      BLOCKS blocks, or less than a block
// Build:    packs      = row / 16
//           each       = 2 when 4 * rows * row <= 5 * l2
//                      | 4
//           BLOCKS     = max(1, ceil_div(packs, 256 * each))
//           share      = ceil_div(packs, BLOCKS)
//           least      = 2 when row % 16 == 0 || row % 8 == 0 && packs <= 2
//                      | 4
//           THREADS    = max(least, power_of_two(ceil_div(packs, 3))) when packs <= 96
//                      | max(64, 32 * ceil_div(share, 32 * each))
//           PACKS      = max(1, ceil_div(share, THREADS))
//           EVICT_LAST = 4 * rows * row > 5 * l2 && capability >= 80
// Launch:   block = max(1, 4 * (32 / THREADS)) * THREADS,
//           block == max(1, 4 * (32 / THREADS)) * THREADS,
//           grid = ceil_div(rows, max(1, 4 * (32 / THREADS))) * BLOCKS
// Shared:   0
// Columns:  cols >= 1 && row / 16 <= BLOCKS * THREADS * PACKS
// Align:    size
// Inplace:  dx = x
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   x is read a second time; dx that is aligned differently from x is written by
//           element.
// Measured: 4313 GB/s, 1.01 of a copy (best copy 1.01) at 4096 x 262144 bfloat16 (H200, 2026-11-28)
//
// For row-major x and dx of shape (rows, cols), with t = target[row], s = smoothing, and
// (m, l) = statistics[row] as 15_cross_entropy.cu writes them:
//
//     p        = exp((x - m) - l)
//     dx       = dloss[row] * (p * (1 + 2 * z_loss * (m + l)) - s / cols)
//     dx[t]   -= dloss[row] * (1 - s)
//
// m and l are added, and so rounded, only for z_loss: for a target that is predicted almost surely,
// p - 1 would otherwise be mostly rounding error once logits reach several hundred.
//
// dx may be x itself; else it must not overlap any other array. Both may start at any element.
// Where t is ignore_index dx is 0; any other t outside 0 to cols - 1 gives NaN, and so does a row
// with NaN or +inf, or of all -inf. Measured with -ftz=true, as CuPy compiles.

#if !defined(BLOCKS) || !defined(THREADS) || !defined(PACKS) || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DBLOCKS=7 -DTHREADS=256 -DPACKS=4 \
-DEVICT_LAST=1"
#endif

#include "include/cache_hints.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"

static_assert(BLOCKS >= 1, "BLOCKS must be at least 1");
static_assert(THREADS <= 1024 && (THREADS > 32 ? THREADS % 32 : 32 % THREADS) == 0,
              "THREADS must be a multiple of 32, or a power of two below it");

constexpr int together = THREADS > 32 ? 1 : 128 / THREADS;      // rows of a block
constexpr int edges = (2 * width - 2 + THREADS - 1) / THREADS;  // columns of a thread at the ends

extern "C" __global__ void __launch_bounds__(together * THREADS)
cross_entropy_backward(const T* x, const long long* __restrict__ target,
                       const float* __restrict__ statistics, const float* __restrict__ dloss, T* dx,
                       int rows, int cols, long long ignore_index, float smoothing, float z_loss)
{
    // Head, body and tail as in 11_any_row.cu; the ends belong to the first block.
    const int rank = blockIdx.x % BLOCKS;
    const unsigned thread = together == 1 ? threadIdx.x : threadIdx.x % THREADS;  // of the row
    const long long row = blockIdx.x / BLOCKS * together + (threadIdx.x - thread) / THREADS;
    if (together > 1 && row >= rows) return;
    const T* from = x + row * cols;
    T* to = dx + row * cols;
    const int head = min(cols, (int)((16 - (unsigned long long)from % 16) % 16 / sizeof(T)));
    const uint4* body = reinterpret_cast<const uint4*>(from + head);
    const int packs = (cols - head) / width;
    const int ends = rank == 0 ? cols - packs * width : 0;
    const bool ragged = edges == 1 || ends > 0;  // else no code for the ends is run
    int end[edges];                              // columns of the thread, or cols for none
#pragma unroll
    for (int i = 0; i < edges; ++i) {
        const int number = thread + i * THREADS;
        end[i] = number >= ends ? cols : number + (number < head ? 0 : packs * width);
    }
    const bool whole = (unsigned long long)(to + head) % 16 == 0;  // packs of dx can be stored

    // ---- read -----------------------------------------------------------------------------------
    // All loads come before the first store. Target and statistics are loaded first, since every
    // column depends on them, and without a branch: a load behind one would wait for it.
    const long long wanted = target[row];
    const float given = dloss[row], found_max = statistics[2 * row];
    const float found_log_sum = statistics[2 * row + 1];
    const unsigned long long policy = EVICT_LAST ? evict_last_policy() : 0;
    Pack v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * BLOCKS + rank) * THREADS + thread;
        if (pack < packs)  // dx may be x: no load through the read-only path
            v[k].bits = EVICT_LAST ? load_written_evict_last(body + pack, policy) : body[pack];
    }
    float v_end[edges];
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) v_end[i] = end[i] < cols ? to_float(from[end[i]]) : 0.0f;

    // ---- target and statistics ------------------------------------------------------------------
    // dx = p * slope - level, and less by `hot` in the target's column. A d of NaN makes all NaN; a
    // row that is ignored is one of zeros, of which nothing is wanted.
    const bool ignored = wanted == ignore_index;
    const bool inside = wanted >= 0 && wanted < cols;
    const float d = ignored ? 0.0f : inside ? given : __int_as_float(0x7fffffff);
    const float row_max = ignored ? 0.0f : found_max;
    const float log_sum = ignored ? 0.0f : found_log_sum;
    const float slope = d * (1.0f + 2.0f * z_loss * (row_max + log_sum));
    const float level = d * smoothing / cols;
    const float hot = d * (1.0f - smoothing);
    const auto gradient = [&](float value) {
        return fmaf(fast_exp(value - row_max - log_sum), slope, -level);
    };
    if (ignored) {
#pragma unroll
        for (int k = 0; k < PACKS; ++k) v[k].bits = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < edges; ++i) v_end[i] = 0.0f;
    }

    // The target's column is written twice, by one thread.
    const int hot_column = inside && !ignored ? (int)wanted : -1;
    const int hot_pack = (hot_column - head) / width;
    bool owns = false;
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) owns = owns || end[i] == hot_column;
    owns = owns || hot_column >= head && hot_pack < packs
                       && hot_pack % (BLOCKS * THREADS) == rank * THREADS + thread;
    const float v_hot = owns ? to_float(from[hot_column]) : 0.0f;

    // ---- write ----------------------------------------------------------------------------------
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * BLOCKS + rank) * THREADS + thread;
        if (pack >= packs) break;
        const int first = head + pack * width;
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            const float2 two = to_float2(v[k].columns[c]);
            v[k].columns[c] = to_T2(make_float2(gradient(two.x), gradient(two.y)));
        }
        if (whole) {
            *reinterpret_cast<uint4*>(to + first) = v[k].bits;
        } else {
#pragma unroll
            for (int c = 0; c < width; ++c)
                to[first + c] = c % 2 ? v[k].columns[c / 2].y : v[k].columns[c / 2].x;
        }
    }
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i)
            if (end[i] < cols) to[end[i]] = to_T(gradient(v_end[i]));
    if (owns) to[hot_column] = to_T(gradient(v_hot) - hot);
}

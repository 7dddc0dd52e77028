// SPDX-License-Identifier: MIT
// Idea:     the loss of short rows: LANES lanes of a warp own a row, as in 07_warp.cu; with a block
//           per row, as in 15_cross_entropy.cu, most threads would be idle.
// Computes: cross_entropy
// Row:      LANES lanes of a warp
// Build:    packs = row / 16
//           least = 2 when size == 4 || row % 16 == 0
//                 | 4
//           LANES = min(32, max(least, power_of_two(ceil_div(packs, 5))))
//           PACKS = max(1, ceil_div(packs, LANES))
// Launch:   block = 128, block == 128, grid = ceil_div(rows, 128 / LANES)
// Shared:   0
// Columns:  cols >= 1 && row / 16 <= LANES * PACKS && PACKS <= 16
// Align:    size
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 0 writes
// Wastes:   the ends of a row that is not a whole number of packs are read by element.
// Measured: not yet
//
// Loss and statistics are those of 15_cross_entropy.cu, for the same arguments.

#if !defined(LANES) || !defined(PACKS)
#error "compile with all macros of the Build table: -DLANES=8 -DPACKS=3"
#endif

#include "include/packs.cuh"
#include "include/reductions.cuh"

static_assert(LANES >= 1 && LANES <= 32 && (LANES & (LANES - 1)) == 0,
              "LANES is a power of two: the rows of a warp begin at its multiples");

constexpr int edges = (2 * width - 2 + LANES - 1) / LANES;  // columns of a lane at the ends

extern "C" __global__ void __launch_bounds__(128)
cross_entropy_short_rows(const T* __restrict__ x, const long long* __restrict__ target,
                         float* __restrict__ loss, float* __restrict__ statistics, int rows,
                         int cols, long long ignore_index, float smoothing, float z_loss)
{
    // Lanes past the last row take part in the shuffles, as for a row without columns.
    const int lane = threadIdx.x % LANES;
    const long long row = blockIdx.x * (128LL / LANES) + threadIdx.x / LANES;
    const int count = row < rows ? cols : 0;
    const T* from = x + row * cols;
    const int head = min(count, (int)((16 - (unsigned long long)from % 16) % 16 / sizeof(T)));
    const int packs = (count - head) / width;
    const bool ragged = packs * width < count;  // else no code for the ends is run
    const bool asks = lane == 0 && row < rows;
    const long long wanted = asks ? target[row] : 0;
    const bool inside = wanted >= 0 && wanted < cols;
    const float x_target = asks && inside ? to_float(from[wanted]) : 0.0f;

    // ---- load, reduce, exchange -----------------------------------------------------------------
    Pack v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        fill(v[k], minus_inf());
        const int pack = lane + k * LANES;
        if (pack < packs) v[k].bits = reinterpret_cast<const uint4*>(from + head)[pack];
    }
    float v_end[edges], largest = max_of(v), total = 0.0f;  // of the columns: for smoothing
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) {
            const int end = lane + i * LANES, column = end + (end < head ? 0 : packs * width);
            v_end[i] = column < count ? to_float(from[column]) : minus_inf();
            largest = fmaxf(largest, v_end[i]);
            if (column < count) total += v_end[i];
        }
    const float row_max = warp_max<LANES>(fmaxf(lowest, largest));
    float sum = sum_of<false>(v, row_max);
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) sum += fast_exp(v_end[i] - row_max);
    sum = warp_sum<LANES>(sum);
    if (smoothing > 0.0f) {
#pragma unroll
        for (int k = 0; k < PACKS; ++k)
#pragma unroll
            for (int c = 0; c < pairs_per_pack; ++c) {
                const float2 two = to_float2(v[k].columns[c]);
                if (lane + k * LANES < packs) total += two.x + two.y;
            }
        total = warp_sum<LANES>(total);
    }

    // ---- write: see 15_cross_entropy.cu ---------------------------------------------------------
    if (!asks) return;
    const float log_sum = logf(sum), lse = row_max + log_sum;
    float row_loss = log_sum + (row_max - x_target);
    if (smoothing > 0.0f)
        row_loss = (1.0f - smoothing) * row_loss + smoothing * (log_sum + (row_max - total / cols));
    if (z_loss > 0.0f) row_loss += z_loss * lse * lse;
    statistics[2 * row] = sum == 0.0f ? minus_inf() : row_max;
    statistics[2 * row + 1] = log_sum;
    loss[row] = wanted == ignore_index ? 0.0f : inside ? row_loss : __int_as_float(0x7fffffff);
}

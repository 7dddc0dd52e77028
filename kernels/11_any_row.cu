// SPDX-License-Identifier: MIT
// Idea:     unaligned rows: between its first and last 16-byte boundary a row is moved in packs,
//           the remaining columns by element; where y is aligned differently from x, each lane
//           passes the columns that start the next lane's pack of y to that lane.
// Row:      CLUSTER blocks, 1 to 16
// Build:    packs      = row / 16
//           most_packs = 1024 when 4 * rows * row <= l2
//                      | 2048
//           CLUSTER    = 1 when capability < 90 || packs <= most_packs
//                      | 16 when 16 * rows <= sms
//                      | min(16, power_of_two(ceil_div(packs, most_packs)))
//           share      = ceil_div(packs, CLUSTER)
//           most       = 4 when share <= 1024
//                      | 8
//           THREADS    = max(64, 32 * ceil_div(share, 32 * most))
//           PACKS      = ceil_div(share, THREADS)
//           LATE       = x_stride * size % 16 != y_stride * size % 16
//           sm_threads = 768 when LATE == 1 && size == 2
//                      | 1024
//           RESIDENT   = max(1, sm_threads / THREADS)
//           EVICT_LAST = 4 * rows * row > 5 * l2 && capability >= 80
// Launch:   block = THREADS, block == THREADS, grid = rows * CLUSTER
// Shared:   0
// Columns:  share >= 64 && share <= 8192 && packs <= CLUSTER * THREADS * PACKS && PACKS <= 16
// Align:    size
// Strides:  x_stride, y_stride
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   a block for a row is too much for a short one (11_short_rows.cu); 16 blocks
//           hold 2 MB at most (11_any_length.cu).
// Measured: 4289 GB/s, 1.00 of a copy at 5340 x 50257 (H200, 2026-11-27)
//
// y[row] = softmax(x[row]); row r of x begins at x + r * x_stride, of y at y + r * y_stride, with
// any alignment. y must not overlap x; memory between rows is neither read nor written. With
// LATE=0, row r of y must begin as far past a 16-byte boundary as row r of x, for each r; the table
// assumes that x and y themselves do: otherwise use LATE=1. A row of all -inf, or one with NaN or
// +inf, gives NaN, as in PyTorch. Clusters need sm_90; one of 16 must be allowed once: see
// cluster.cuh. Measured with -ftz=true, as CuPy compiles.

#if !defined(CLUSTER) || !defined(THREADS) || !defined(PACKS) || !defined(LATE) \
    || !defined(RESIDENT) || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DCLUSTER=4 -DTHREADS=256 -DPACKS=8 \
-DLATE=0 -DRESIDENT=4 -DEVICT_LAST=1"
#endif

#include "include/cache_hints.cuh"
#include "include/cluster.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"
#include "include/unaligned.cuh"

static_assert(LATE == 0 || LATE == 1, "LATE must be 1 (yes) or 0 (no)");

constexpr bool keep = sizeof(T) == 4;  // the exponentials, in the registers of their columns

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, RESIDENT)
softmax_any_row(const T* __restrict__ x, T* __restrict__ y, int rows, int cols,
                long long x_stride, long long y_stride)
{
    __shared__ alignas(8) float2 messages[senders];         // a pair of every warp of the row
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    if (CLUSTER > 1) announce_block(&all_arrived, 8 * senders);

    // ---- load -----------------------------------------------------------------------------------
    // A row is a head of columns up to the first 16-byte boundary, a body of whole packs, and a
    // tail. The first block takes head and tail, one column per thread. The packs are dealt
    // round-robin to all threads of the cluster, as in 08_cluster.cu; but where the body of y
    // starts `late` columns past a boundary, a warp takes consecutive packs, so that a pack of y
    // lies in two neighbouring lanes.
    const long long row = blockIdx.x / CLUSTER;
    const T* from = x + row * x_stride;
    T* to = y + row * y_stride;
    const int head = (16 - (unsigned long long)from % 16) % 16 / sizeof(T);
    const uint4* body = reinterpret_cast<const uint4*>(from + head);
    const int packs = (cols - head) / width;
    const int ends = cols - packs * width;  // columns of head and tail
    const int end = threadIdx.x + (threadIdx.x < head ? 0 : packs * width);
    const bool has_end = rank == 0 && threadIdx.x < ends;
    const int late = LATE ? (unsigned long long)(to + head) % 16 / sizeof(T) : 0;  // columns
    const int block = rank * THREADS * (late ? PACKS : 1);  // its first pack
    const int start = block + (late ? warp * 32 * PACKS + lane : threadIdx.x);
    const int step = late ? 32 : CLUSTER * THREADS;
    Pack v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = start + k * step;
        if (pack < packs) {
            v[k].bits = load_once<EVICT_LAST>(body + pack);
        } else {
            fill(v[k], minus_inf());
        }
    }
    float v_end = has_end ? to_float(from[end]) : minus_inf();

    // ---- reduce ---------------------------------------------------------------------------------
    const float thread_max = fmaxf(fmaxf(lowest, v_end), max_of(v));
    v_end = fast_exp(v_end - thread_max);
    const float sum = sum_of<keep>(v, thread_max, v_end);

    // ---- exchange -------------------------------------------------------------------------------
    const float2 message = warp_pair(thread_max, sum);
    exchange(message, messages, &all_arrived, rank, warp, lane);
    const float2 row_pair = merge_pairs(messages, senders);
    const float scale = fast_exp(thread_max - row_pair.x) / row_pair.y;

    // ---- write ----------------------------------------------------------------------------------
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        uint4& bits = v[k].bits;
        if (!keep) asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            const T2 columns = v[k].columns[c];
            const float2 e = keep ? to_float2(columns) : exponentials(columns, thread_max);
            v[k].columns[c] = to_T2(make_float2(e.x * scale, e.y * scale));
        }
        const int pack = start + k * step;
        if (late == 0 && pack < packs) reinterpret_cast<uint4*>(to + head)[pack] = bits;
    }
    if (late > 0) {
        __shared__ uint4 last_pack[warps];  // the last pack of each warp, for the first of the next
        if (lane == 31) last_pack[warp] = v[PACKS - 1].bits;
        __syncthreads();
        uint4 previous = last_pack[max(warp - 1, 0)];
        const int end_pack = min(packs, block + THREADS * PACKS);  // past the block's last pack
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int pack = start + k * step;
            store_late(to + head + pack * width, late, v[k], pack < packs,
                       pack == block && pack < packs, pack == end_pack - 1, previous);
        }
    }
    if (has_end) to[end] = to_T(v_end * scale);
}

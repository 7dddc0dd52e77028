// SPDX-License-Identifier: MIT
// Idea:     loss and gradient of cross-entropy in one kernel, as Liger-Kernel and QuACK offer it:
//           a cluster keeps the row in registers, as in 08_cluster.cu, so that x is read once;
//           short rows share a block, as in 14_any_row.cu.
// Computes: cross_entropy_loss_and_gradient
// Row:      CLUSTER blocks, 1 to 16, or some lanes of a warp
// Build:    packs      = row / 16
//           small      = 4 * rows * row <= l2
//           CLUSTER    = 1 when capability < 90 || packs <= 1024
//                      | 16 when 16 * rows <= sms || packs > min(36864, 12288 * size)
//                      | min(8, power_of_two(ceil_div(packs, 1280)))
//           share      = ceil_div(packs, CLUSTER)
//           tiny       = 20 * rows * row <= l2
//           each       = 3 when packs <= 90 && tiny == 1
//                      | 2 when packs <= 1024 && tiny == 1
//                      | 4 when packs <= 1024 && small == 1
//                      | 12 when CLUSTER == 8 && share > 2048
//                      | 8
//           least      = 2 when row <= 96 && row % 4 == 0
//                      | 4
//           lanes      = min(32, max(least, power_of_two(ceil_div(packs, each))))
//           together   = packs <= 90 || packs <= 256 && small == 0
//           THREADS    = 128 when together == 1
//                      | 32 * ceil_div(share, 32 * each)
//           ROWS       = 128 / lanes when together == 1
//                      | 1
//           PACKS      = max(1, ceil_div(share, THREADS / ROWS))
//           RESIDENT   = max(1, 768 / THREADS) when PACKS > 8
//                      | max(1, min(16, 1024 / THREADS))
//           EVICT_LAST = 4 * rows * row > 5 * l2 && capability >= 80
//                        && (size == 4 || share <= 1024)
// Launch:   block = THREADS, block == THREADS, grid = ceil_div(rows, ROWS) * CLUSTER
// Shared:   0
// Columns:  cols >= 1 && PACKS >= 1 && PACKS <= 16 && THREADS % 32 == 0 && THREADS <= 1024
//           && row / 16 <= CLUSTER * (THREADS / ROWS) * PACKS
//           && (ROWS == 1 || CLUSTER == 1 && THREADS % ROWS == 0 && 32 % (THREADS / ROWS) == 0)
// Align:    size
// Inplace:  dx = x
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   dx that is aligned differently from x is written by element.
// Measured: 3899 GB/s, 0.91 of a copy at 4096 x 262144 bfloat16 (H200, 2026-11-29)
//
// For row-major x and dx of shape (rows, cols), with t = target[row], s = smoothing,
// m = max(x[row]) and l = log(sum(exp(x[row] - m))):
//
//     loss[row] = (1 - s) * (lse - x[t]) + s * (lse - mean(x[row])) + z_loss * lse^2
//     dx        = dloss[row] * (exp(x - m) / exp(l) * (1 + 2 * z_loss * lse) - s / cols)
//     dx[t]    -= dloss[row] * (1 - s)
//
// where lse = m + l; they are added, and so rounded, only for z_loss (see 15_gradient.cu). dloss
// must be known before the loss: for the mean, 1 / the rows that are not ignored.
// 15_cross_entropy.cu and 15_gradient.cu do without that, and take rows of any length, but read x
// twice. With the rule's PACKS, a row has at most 2 MB, which 16 blocks hold, or 128 KB where there
// are no clusters.
//
// dx may be x itself; else it must not overlap any other array, and loss must not either. Both
// matrices may start at any element. Where t is ignore_index, loss and dx are 0; any other t
// outside 0 to cols - 1 gives NaN, and so does a row with NaN or +inf, or of all -inf. A cluster of
// 16 must be allowed once: see cluster.cuh. Clusters need sm_90. Measured with -ftz=true, as CuPy
// compiles.
//
// A thread has up to 8 packs, which with 1024 threads per multiprocessor leaves it 32 other
// registers; with fewer, less is loaded at a time. A small matrix would have too few threads then,
// so its threads have 2 to 4. Threads of a cluster of 8 have up to 12 where that avoids a cluster
// of 16, of which fewer fit on a GPU. In 16 bits, the hint for the L2 is slower with larger blocks;
// we do not know why.

#if !defined(CLUSTER) || !defined(THREADS) || !defined(ROWS) || !defined(PACKS) \
    || !defined(RESIDENT) || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DCLUSTER=4 -DTHREADS=160 -DROWS=1 -DPACKS=8 \
-DRESIDENT=6 -DEVICT_LAST=1"
#endif

#include "include/cache_hints.cuh"
#include "include/cluster.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"

static_assert(ROWS == 1 || CLUSTER == 1 && THREADS % ROWS == 0 && 32 % (THREADS / ROWS) == 0,
              "ROWS above 1 needs CLUSTER=1 and 1, 2, 4, 8, 16 or 32 threads per row");

constexpr int lanes = THREADS / ROWS;                       // threads of a row in a block
constexpr int edges = (2 * width - 2 + lanes - 1) / lanes;  // columns of a thread at the ends
// Whether a thread keeps its exponentials. In 16 bits they need twice the columns' registers. Else
// it computes them twice, and skips packs past the end of the row.
constexpr bool keep = sizeof(T) == 4 || PACKS <= 4;

// If not, makes the compiler convert columns again instead of keeping their floats: the empty asm
// may change the bits.
__device__ __forceinline__ void forget_floats(uint4& bits)
{
    if (!keep) asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
}

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, RESIDENT)
cross_entropy_loss_and_gradient(const T* x, const long long* __restrict__ target,
                                const float* __restrict__ dloss, float* __restrict__ loss, T* dx,
                                int rows, int cols, long long ignore_index, float smoothing,
                                float z_loss)
{
    __shared__ alignas(16) float4 messages[senders];        // what every warp of the row found
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const unsigned thread = ROWS == 1 ? threadIdx.x : threadIdx.x % lanes;  // of the row

    if (CLUSTER > 1) announce_block(&all_arrived, 16 * senders);

    // ---- load -----------------------------------------------------------------------------------
    // Head, body and tail as in 11_any_row.cu; the ends belong to the first block. Lanes past the
    // last row take part in the shuffles, as for an ignored row without columns.
    const long long row = blockIdx.x / CLUSTER * (long long)ROWS + (threadIdx.x - thread) / lanes;
    const bool exists = ROWS == 1 || row < rows;
    const int count = exists ? cols : 0;
    const long long wanted = exists ? target[row] : ignore_index;
    const float given = exists ? dloss[row] : 0.0f;
    const T* from = x + row * cols;
    T* to = dx + row * cols;
    const int head = min(count, (int)((16 - (unsigned long long)from % 16) % 16 / sizeof(T)));
    const uint4* body = reinterpret_cast<const uint4*>(from + head);
    const int packs = (count - head) / width;
    const int ends = count - packs * width;
    const bool ragged = edges == 1 || ends > 0;  // else no code for the ends is run
    bool has_end[edges];
    int end[edges];
#pragma unroll
    for (int i = 0; i < edges; ++i) {
        const unsigned number = thread + i * lanes;
        has_end[i] = rank == 0 && number < ends;
        end[i] = number + (number < head ? 0 : packs * width);
    }
    const auto pack_of = [&](int k) { return (k * CLUSTER + rank) * lanes + (int)thread; };
    const unsigned long long policy = EVICT_LAST ? evict_last_policy() : 0;
    Pack v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = pack_of(k);
        if (pack < packs) {  // dx may be x: no load through the read-only path
            v[k].bits = EVICT_LAST ? load_written_evict_last(body + pack, policy) : body[pack];
        } else {
            fill(v[k], minus_inf());
        }
    }
    float v_end[edges];
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i)
            v_end[i] = has_end[i] ? to_float(from[end[i]]) : minus_inf();

    // ---- the target -----------------------------------------------------------------------------
    // The thread that holds the target's column writes the loss. It reads the column again, before
    // any store to it. An ignored row is one of zeros with dloss = 0, so that no NaN is left.
    const bool ignored = wanted == ignore_index;
    const bool inside = wanted >= 0 && wanted < cols;
    const int hot_column = inside && !ignored ? (int)wanted : -1;
    const int hot_pack = (hot_column - head) / width;
    bool owns = false;
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) owns = owns || has_end[i] && end[i] == hot_column;
    owns = owns || hot_column >= head && hot_pack < packs
                       && hot_pack % (CLUSTER * lanes) == pack_of(0);
    const float v_hot = owns ? to_float(from[hot_column]) : 0.0f;
    if (ignored) {
#pragma unroll
        for (int k = 0; k < PACKS; ++k) fill(v[k], 0.0f);
#pragma unroll
        for (int i = 0; i < edges; ++i) v_end[i] = 0.0f;
    }

    // ---- reduce ---------------------------------------------------------------------------------
    float thread_max = lowest, sum = 0.0f, total = 0.0f;  // sum of exponentials, total of columns
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) {
            thread_max = fmaxf(thread_max, v_end[i]);
            if (has_end[i]) total += v_end[i];
        }
    thread_max = fmaxf(thread_max, max_of(v));
    if (smoothing != 0.0f)
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
#pragma unroll
            for (int c = 0; c < pairs_per_pack; ++c) {
                const float2 two = to_float2(v[k].columns[c]);
                if (pack_of(k) < packs) total += two.x + two.y;
            }
            forget_floats(v[k].bits);
        }
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) sum += v_end[i] = fast_exp(v_end[i] - thread_max);
    float2 kept[PACKS][pairs_per_pack];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        if (!keep && pack_of(k) >= packs) break;
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            kept[k][c] = exponentials(v[k].columns[c], thread_max);
            sum += kept[k][c].x + kept[k][c].y;
        }
    }
    constexpr int group = lanes < 32 ? lanes : 32;  // lanes of a warp that have the same row
    float row_max = warp_max<group>(thread_max);
    float row_sum = warp_sum<group>(sum * fast_exp(thread_max - row_max));
    float row_total = warp_sum<group>(total);

    // ---- exchange -------------------------------------------------------------------------------
    if (ROWS == 1) {
        const int lane = threadIdx.x % 32;
        exchange(make_float4(row_max, row_sum, row_total, 0.0f), messages, &all_arrived, rank,
                 threadIdx.x / 32, lane);
        row_max = lowest, row_sum = row_total = 0.0f;
#pragma unroll 2  // not all: the row needs the registers
        for (int i = lane; i < senders; i += 32) row_max = fmaxf(row_max, messages[i].x);
        row_max = warp_max(row_max);
#pragma unroll 2
        for (int i = lane; i < senders; i += 32) {
            row_sum += messages[i].y * fast_exp(messages[i].x - row_max);
            row_total += messages[i].z;
        }
        row_sum = warp_sum(row_sum);
        row_total = warp_sum(row_total);
    }

    // ---- write the loss -------------------------------------------------------------------------
    // max - x[t] first: that is exact where both are close, and lse is rounded.
    const float log_sum = logf(row_sum), lse = row_max + log_sum;
    if (hot_column < 0 ? exists && rank == 0 && thread == 0 : owns) {
        float row_loss = log_sum + (row_max - v_hot);
        if (smoothing != 0.0f)
            row_loss = (1.0f - smoothing) * row_loss
                       + smoothing * (log_sum + (row_max - row_total / cols));
        if (z_loss != 0.0f) row_loss += z_loss * lse * lse;
        loss[row] = ignored ? 0.0f : inside ? row_loss : __int_as_float(0x7fffffff);
    }

    // ---- write the gradient ---------------------------------------------------------------------
    // dx = exp(x - thread_max) * factor - level, and less by `hot` in the target's column, which
    // one thread writes twice.
    const float d = ignored ? 0.0f : inside ? given : __int_as_float(0x7fffffff);
    const float slope = d * (1.0f + 2.0f * z_loss * lse);
    const float factor = fast_exp(thread_max - row_max) / row_sum * slope;
    const float level = d * smoothing / cols;
    const float hot = d * (1.0f - smoothing);
    const bool whole = (unsigned long long)(to + head) % 16 == 0;  // packs of dx can be stored
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        if (!keep && pack_of(k) >= packs) break;
        forget_floats(v[k].bits);
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            const float2 e = keep ? kept[k][c] : exponentials(v[k].columns[c], thread_max);
            v[k].columns[c] = to_T2(make_float2(fmaf(e.x, factor, -level),
                                                fmaf(e.y, factor, -level)));
        }
        const int first = head + pack_of(k) * width;
        if (pack_of(k) < packs && whole) {
            *reinterpret_cast<uint4*>(to + first) = v[k].bits;
        } else if (pack_of(k) < packs) {
#pragma unroll
            for (int c = 0; c < width; ++c)
                to[first + c] = c % 2 ? v[k].columns[c / 2].y : v[k].columns[c / 2].x;
        }
    }
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i)
            if (has_end[i]) to[end[i]] = to_T(fmaf(v_end[i], factor, -level));
    if (owns) to[hot_column] = to_T(fmaf(fast_exp(v_hot - thread_max), factor, -level) - hot);
}

// SPDX-License-Identifier: MIT
// Idea:     softmax that is never written: the loss of a row is log(sum(exp(x - max))) + max
//           - x[target], and the recurrence of 02 finds it in one read; nothing of the row is kept.
//           Short rows share a block, as in 14_any_row.cu.
// Computes: cross_entropy
// Row:      CLUSTER blocks, 1 to 16, or some lanes of a warp
// Build:    packs    = row / 16
//           small    = 4 * rows * row <= l2
//           together = packs <= 256 || size == 2 && small == 0 && packs <= 512
//           most     = 16 when size == 2 && small == 0 && packs <= 160
//                    | 32
//           tiny     = 20 * rows * row <= l2
//           of_lane  = 3 when tiny == 1
//                    | 7 when size == 2 && row % 16 > 0 && packs <= 14 && small == 0
//                    | 5
//           least    = 1 when size == 2
//                    | 2
//           lanes    = min(most, max(least, power_of_two(ceil_div(packs, of_lane))))
//           spread   = min(ceil_div(4 * sms, rows), ceil_div(packs, 512))
//           CLUSTER  = 1 when capability < 90 || packs <= 1024
//                    | min(8, power_of_two(max(ceil_div(packs, 5120), spread)))
//           share    = ceil_div(packs, CLUSTER)
//           threads  = 1024 when capability < 80
//                    | 1536
//           per_sm   = ceil_div(rows * CLUSTER, sms)
//           each     = 4
//           rounds   = ceil_div(share, each * max(256, min(1024, threads / per_sm)))
//           THREADS  = 128 when together == 1
//                    | 32 * ceil_div(share, 32 * each * rounds)
//           ROWS     = 128 / lanes when together == 1
//                    | 1
//           UNROLL   = max(1, ceil_div(packs, lanes)) when together == 1
//                    | each
//           RESIDENT = 5 when together == 1 && UNROLL > 10
//                    | 8 when together == 1
//                    | threads / THREADS
// Launch:   block = THREADS, block == THREADS, grid = ceil_div(rows, ROWS) * CLUSTER
// Shared:   0
// Columns:  cols >= 1 && UNROLL >= 1 && THREADS % 32 == 0 && THREADS <= 1024
//           && (ROWS == 1 || CLUSTER == 1 && THREADS % ROWS == 0 && 32 % (THREADS / ROWS) == 0
//                            && row / 16 <= THREADS / ROWS * UNROLL)
// Align:    size
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 0 writes
// Wastes:   the gradient reads x once more (15_gradient.cu).
// Measured: 4672 GB/s, 1.02 of 00_read at 4096 x 128256 (H200, 2026-11-28)
//
// For row-major x of shape (rows, cols), with t = target[row] and s = smoothing:
//
//     statistics[row] = (m, l) with m = max(x[row]) and l = log(sum(exp(x[row] - m)))
//     loss[row]       = (1 - s) * (lse - x[t]) + s * (lse - mean(x[row])) + z_loss * lse^2
//
// where lse = m + l, the logarithm of the sum of exponentials. The loss is that of PyTorch's
// cross_entropy with reduction="none" and label_smoothing=s; z_loss keeps lse near 0 (Chowdhery et
// al., PaLM, 2022). 15_gradient.cu reads the two statistics. They stay apart because their
// rounded sum has lost digits of l: at m = 8192 it is a multiple of 1/1024. x may start at any
// element. Where t is ignore_index the loss is 0; any other t outside 0 to cols - 1 gives a loss of
// NaN. So does a row with NaN or +inf, whose l is NaN and whose m means nothing, or a row of all
// -inf, where m and l are -inf. loss and statistics must not overlap any other array. Clusters need
// sm_90. Measured with -ftz=true, as CuPy compiles.
//
// With ROWS above 1, threads read all of their row at once, in UNROLL packs each; otherwise they
// read UNROLL packs at a time. Few rows are spread over more blocks, and long ones too, so that
// multiprocessors end at about the same time.

#if !defined(CLUSTER) || !defined(THREADS) || !defined(ROWS) || !defined(UNROLL) \
    || !defined(RESIDENT)
#error "compile with all macros of the Build table: -DCLUSTER=1 -DTHREADS=512 -DROWS=1 -DUNROLL=4 \
-DRESIDENT=3"
#endif

#include "include/cluster.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"

static_assert(ROWS == 1 || CLUSTER == 1 && THREADS % ROWS == 0 && 32 % (THREADS / ROWS) == 0,
              "ROWS above 1 needs CLUSTER=1 and 1, 2, 4, 8, 16 or 32 threads per row");
static_assert(UNROLL >= 1, "UNROLL must be at least 1");

constexpr int lanes = THREADS / ROWS;                       // threads of a row in a block
constexpr int group = lanes < 32 ? lanes : 32;              // lanes of a warp that have one row
constexpr int edges = (2 * width - 2 + lanes - 1) / lanes;  // columns of a thread at the ends

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, RESIDENT)
cross_entropy(const T* __restrict__ x, const long long* __restrict__ target,
              float* __restrict__ loss, float* __restrict__ statistics, int rows, int cols,
              long long ignore_index, float smoothing, float z_loss)
{
    __shared__ alignas(16) float4 messages[senders];        // what every warp of the row found
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const unsigned thread = ROWS == 1 ? threadIdx.x : threadIdx.x % lanes;  // of the row

    if (CLUSTER > 1) announce_block(&all_arrived, 16 * senders);

    // Head, body and tail as in 11_any_row.cu; the ends belong to the first block. Lanes past the
    // last row take part in the shuffles, as for a row without columns.
    const long long row = blockIdx.x / CLUSTER * (long long)ROWS + (threadIdx.x - thread) / lanes;
    const int count = ROWS == 1 || row < rows ? cols : 0;
    const T* from = x + row * cols;
    const int head = min(count, (int)((16 - (unsigned long long)from % 16) % 16 / sizeof(T)));
    const uint4* body = reinterpret_cast<const uint4*>(from + head);
    const int packs = (count - head) / width;
    const int ends = rank == 0 ? count - packs * width : 0;
    const bool ragged = edges == 1 || ends > 0;  // else no code for the ends is run

    const bool asks = rank == 0 && thread == 0 && count > 0;
    const long long wanted = asks ? target[row] : 0;

    // ---- read and reduce ------------------------------------------------------------------------
    // UNROLL packs at a time: their maximum first, then one correction of what was summed before.
    // x - max comes first: a multiply-add would round max * log2(e), and the loss of a row that is
    // nearly sure of its target is smaller than that rounding.
    T v_end[edges];  // waited for after the packs
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) {
            const int end = thread + i * lanes, column = end + (end < head ? 0 : packs * width);
            v_end[i] = end < ends ? from[column] : to_T(minus_inf());
        }
    float thread_max = lowest, sum = 0.0f, total = 0.0f;  // total of the columns: for smoothing
    int first = rank * lanes + (int)thread;
    do {
        Pack v[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            const int pack = first + k * CLUSTER * lanes;
            if (pack < packs) {
                v[k].bits = body[pack];
            } else {
                fill(v[k], minus_inf());
            }
        }
        const float new_max = fmaxf(thread_max, max_of(v));
        sum *= fast_exp(thread_max - new_max);
        thread_max = new_max;
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            if (first + k * CLUSTER * lanes >= packs) break;
#pragma unroll
            for (int c = 0; c < pairs_per_pack; ++c) {
                const float2 two = to_float2(v[k].columns[c]);
                sum += fast_exp(two.x - thread_max) + fast_exp(two.y - thread_max);
                total += two.x + two.y;
            }
        }
        first += UNROLL * CLUSTER * lanes;
    } while (ROWS == 1 && first < packs);
    float row_max = thread_max;
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) row_max = fmaxf(row_max, to_float(v_end[i]));
    row_max = warp_max<group>(row_max);

    // The target's column is loaded after the row: a warp loads in order, so that a load that waits
    // for `wanted` delays those after it. The compiler cannot know that row_max >= lowest.
    const bool inside = wanted >= 0 && wanted < cols;
    const float x_target = asks && inside && row_max >= lowest ? to_float(from[wanted]) : 0.0f;
    sum *= fast_exp(thread_max - row_max);
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) {
            sum += fast_exp(to_float(v_end[i]) - row_max);
            if (thread + i * lanes < ends) total += to_float(v_end[i]);
        }
    sum = warp_sum<group>(sum);
    total = warp_sum<group>(total);

    // ---- exchange -------------------------------------------------------------------------------
    if (ROWS == 1) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        exchange(make_float4(row_max, sum, total, 0.0f), messages, &all_arrived, rank, warp, lane);
        if (rank > 0 || warp > 0) return;
        row_max = lowest, sum = total = 0.0f;
#pragma unroll
        for (int i = lane; i < senders; i += 32) row_max = fmaxf(row_max, messages[i].x);
        row_max = warp_max(row_max);
#pragma unroll
        for (int i = lane; i < senders; i += 32) {
            sum += messages[i].y * fast_exp(messages[i].x - row_max);
            total += messages[i].z;
        }
        sum = warp_sum(sum);
        total = warp_sum(total);
    }

    // ---- write ----------------------------------------------------------------------------------
    // lse - x[t], but max - x[t] first: that is exact where both are close, and lse is rounded.
    // A sum of 0 means a row of all -inf.
    if (!asks) return;
    const float log_sum = logf(sum), lse = row_max + log_sum;
    float row_loss = log_sum + (row_max - x_target);
    if (smoothing != 0.0f)
        row_loss = (1.0f - smoothing) * row_loss + smoothing * (log_sum + (row_max - total / cols));
    if (z_loss != 0.0f) row_loss += z_loss * lse * lse;
    statistics[2 * row] = sum == 0.0f ? minus_inf() : row_max;
    statistics[2 * row + 1] = log_sum;
    loss[row] = wanted == ignore_index ? 0.0f : inside ? row_loss : __int_as_float(0x7fffffff);
}

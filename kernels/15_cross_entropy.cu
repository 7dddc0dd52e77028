// SPDX-License-Identifier: MIT
// Idea:     softmax that is never written: the loss of a row is log(sum(exp(x - max))) + max
//           - x[target], and the recurrence of 02 finds it in one read; nothing of the row is kept.
// Computes: cross_entropy
// Row:      CLUSTER blocks, 1 to 16
// Build:    packs      = row / 16
//           per_sm     = ceil_div(rows, sms)
//           CLUSTER    = 1 when capability < 90 || packs < 2048 || size == 2 && 2 * rows > sms
//                      | 8 when 4 * rows <= sms
//                      | 1 when per_sm > 1 && (packs < 7000 || per_sm <= 4 && packs < 16384)
//                      | 4
//           sm_threads = 1024 when capability < 80
//                      | 2048 when CLUSTER == 1 && size == 2
//                               && (capability == 80 || capability == 90)
//                      | 1536
//           most       = 8 when size == 2
//                      | 4 when per_sm <= 4
//                      | 3
//           at_once    = ceil_div(per_sm, ceil_div(per_sm, most))
//           medium     = CLUSTER == 1 && (packs < 2048 || packs < 4000 && per_sm > 4)
//           each       = 4 when size == 4 || CLUSTER > 1
//                      | 3 when medium == 1
//                      | 2
//           wanted     = each * 512 when per_sm <= 2
//                      | each * 256
//           rounds     = max(1, ceil_div(packs, wanted))
//           THREADS    = max(128, 32 * ceil_div(packs, 32 * each * rounds)) when medium == 1
//                      | 256 when CLUSTER > 1
//                      | min(1024, 32 * (sm_threads / at_once / 32))
//           UNROLL     = each
//           RESIDENT   = sm_threads / THREADS
// Launch:   block = THREADS, block == THREADS, grid = rows * CLUSTER
// Shared:   0
// Columns:  cols >= 1
// Align:    size
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 0 writes
// Wastes:   the gradient reads x once more (15_gradient.cu).
// Measured: 4567 GB/s, 1.02 of 00_read at 4096 x 128256 (H200, 2026-11-26)
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
// sm_90. Measured with -ftz=true, as CuPy compiles. A multiprocessor works on at_once rows at a
// time, so that all its rounds have as many; its threads are shared between them. Rows of medium
// length have as many threads as read them in whole rounds of UNROLL packs. Short rows have
// 15_short_rows.cu.

#if !defined(CLUSTER) || !defined(THREADS) || !defined(UNROLL) || !defined(RESIDENT)
#error "compile with all macros of the Build table: -DCLUSTER=1 -DTHREADS=512 -DUNROLL=4 \
-DRESIDENT=3"
#endif

#include "include/cluster.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"

static_assert(UNROLL >= 1 && RESIDENT >= 1, "packs at once, blocks of a multiprocessor");

// ---- the kernel ---------------------------------------------------------------------------------

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, RESIDENT)
cross_entropy(const T* __restrict__ x, const long long* __restrict__ target,
              float* __restrict__ loss, float* __restrict__ statistics, int rows, int cols,
              long long ignore_index, float smoothing, float z_loss)
{
    __shared__ alignas(16) float4 messages[senders];        // what every warp of the row found
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    // A block may write to another only when that one has started: see 08_cluster.cu.
    if (CLUSTER > 1) announce_block(&all_arrived, 16 * senders);

    // A head of columns up to the first boundary of 16 bytes, a body of whole packs, a tail: see
    // 11_any_row.cu. The ends are one column a thread of the first block.
    const long long row = blockIdx.x / CLUSTER;
    const T* from = x + row * cols;
    const int head = min(cols, (int)((16 - (unsigned long long)from % 16) % 16 / sizeof(T)));
    const uint4* body = reinterpret_cast<const uint4*>(from + head);
    const int packs = (cols - head) / width;
    const int ends = cols - packs * width;
    const bool has_end = rank == 0 && threadIdx.x < ends;
    const int end = threadIdx.x + (threadIdx.x < head ? 0 : packs * width);

    // The target's column is somewhere in the row: it is asked for first, and waited for last.
    const bool asks = rank == 0 && threadIdx.x == 0;
    const long long wanted = asks ? target[row] : 0;
    const bool inside = wanted >= 0 && wanted < cols;
    const float x_target = asks && inside ? to_float(from[wanted]) : 0.0f;

    // ---- read and reduce ------------------------------------------------------------------------
    // UNROLL packs at a time: their maximum first, then one correction of what was summed before.
    // x - max comes first: a multiply-add would round max * log2(e), and the loss of a row that is
    // nearly sure of its target is smaller than that rounding.
    const float v_end = has_end ? to_float(from[end]) : minus_inf();
    float thread_max = fmaxf(lowest, v_end);
    float sum = fast_exp(v_end - thread_max);
    float total = has_end ? v_end : 0.0f;  // of the columns: for smoothing
    for (int first = rank * THREADS + threadIdx.x; first < packs;
         first += UNROLL * CLUSTER * THREADS) {
        Pack v[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            const int pack = first + k * CLUSTER * THREADS;
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
            float in_pack = 0.0f;
#pragma unroll
            for (int c = 0; c < pairs_per_pack; ++c) {
                const float2 two = to_float2(v[k].columns[c]);
                sum += fast_exp(two.x - thread_max) + fast_exp(two.y - thread_max);
                in_pack += two.x + two.y;  // for smoothing
            }
            if (first + k * CLUSTER * THREADS < packs) total += in_pack;
        }
    }
    const float top = warp_max(thread_max);
    sum = warp_sum(sum * fast_exp(thread_max - top));
    total = warp_sum(total);

    // ---- exchange -------------------------------------------------------------------------------
    // Every warp sends its message to the first block, whose first warp ends the row.
    const float4 message = make_float4(top, sum, total, 0.0f);
    if (CLUSTER == 1) {
        if (lane == 0) messages[warp] = message;
        __syncthreads();
    } else {
        cluster_wait();
        if (lane == 0) send(message, &messages[rank * warps + warp], &all_arrived, 0);
        if (rank == 0) mbarrier_wait(&all_arrived);
    }
    if (rank > 0 || warp > 0) return;

    float row_max = lowest;
#pragma unroll
    for (int i = lane; i < senders; i += 32) row_max = fmaxf(row_max, messages[i].x);
    row_max = warp_max(row_max);
    sum = total = 0.0f;
#pragma unroll
    for (int i = lane; i < senders; i += 32) {
        sum += messages[i].y * fast_exp(messages[i].x - row_max);
        total += messages[i].z;
    }
    sum = warp_sum(sum);
    total = warp_sum(total);

    // ---- write ----------------------------------------------------------------------------------
    // lse - x[t], but max - x[t] first: that is exact where both are close, and lse is rounded.
    // A sum of 0 means a row of all -inf.
    if (lane == 0) {
        const float log_sum = logf(sum);
        const float row_lse = row_max + log_sum;
        float row_loss = log_sum + (row_max - x_target);
        if (smoothing > 0.0f)
            row_loss = (1.0f - smoothing) * row_loss
                       + smoothing * (log_sum + (row_max - total / cols));
        if (z_loss > 0.0f) row_loss += z_loss * row_lse * row_lse;
        statistics[2 * row] = sum == 0.0f ? minus_inf() : row_max;
        statistics[2 * row + 1] = log_sum;
        loss[row] = wanted == ignore_index ? 0.0f : inside ? row_loss : __int_as_float(0x7fffffff);
    }
}

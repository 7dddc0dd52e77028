// SPDX-License-Identifier: MIT
// Idea:     a cluster of small blocks shares a row and keeps it in registers; the blocks send their
//           (max, sum) pairs straight into one another's shared memory.
// Row:      CLUSTER blocks, 1 to 16
// Build:    most_bytes = 11264 when 8 * rows * row <= l2
//                      | 22528
//           CLUSTER    = 16 when 16 * rows <= sms && row > 32768
//                      | 1 when row < 16384
//                      | min(16, max(2, power_of_two(ceil_div(row, most_bytes))))
//           share      = ceil_div(row / 16, CLUSTER)
//           most       = 4 when share <= 512
//                      | 8 when size == 2 || share <= 1024
//                      | 16
//           fewest     = max(64, 32 * ceil_div(share, 32 * most))
//           few        = rows * CLUSTER <= 2 * sms || size == 2 && 4 * rows * row <= l2
//           threads    = max(fewest, min(256, 32 * ceil_div(share, 64))) when few == 1
//                      | fewest
//           packs      = ceil_div(share, threads)
//           THREADS    = max(64, 32 * ceil_div(share, 32 * packs))
//           PACKS      = ceil_div(share, THREADS)
//           sm_threads = 2048 when capability < 110
//                      | 1536
//           RESIDENT   = max(1, min(sm_threads, 65536 / (4 * PACKS + 32)) / THREADS)
//           EVICT_LAST = 4 * rows * row > 5 * l2
//           STREAMING  = rows <= 16 || 3 * rows * row > 2 * l2
// Launch:   block = THREADS, block == THREADS, grid = rows * CLUSTER
// Shared:   0
// Columns:  row % 16 == 0 && share >= 64 && PACKS <= 4 * size && THREADS <= 512
//           && row <= 16 * CLUSTER * THREADS * PACKS
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_90
// Reads:    1 read + 1 write
// Wastes:   past 16 blocks there is no larger cluster; a few rows leave most of the GPU idle (09).
// Measured: 4307 GB/s, 1.00 of a copy at 1024 x 262144 (H200, 2026-11-28)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x. A row
// of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. A cluster of 16 must be allowed
// once: see cluster.cuh. -DFLOAT16 or -DBFLOAT16 selects the dtype; without either it is float32.
// Measured with -ftz=true, as CuPy compiles.
//
// In the Build table `share` is the packs (16 bytes each) of a block, `most` the largest number of
// packs per thread, measured on an H200, `fewest` the threads that it requires. From 16 KB to 352
// KB of row, a block takes 8 KB to 22 KB (`most_bytes`), half of that in a small matrix, unless a
// few rows use clusters of 16. With few blocks (`few`), more threads with fewer packs each are
// faster; THREADS is the least number of whole warps with room for them, so that few lanes idle.
// RESIDENT leaves a thread 4 registers per pack and about 32 others; a multiprocessor has room for
// `sm_threads`.

#if !defined(CLUSTER) || !defined(THREADS) || !defined(PACKS) || !defined(RESIDENT) \
    || !defined(EVICT_LAST) || !defined(STREAMING)
#error "compile with all macros of the Build table: -DCLUSTER=4 -DTHREADS=128 -DPACKS=8 \
-DRESIDENT=8 -DEVICT_LAST=1 -DSTREAMING=1"
#endif

#include "include/cache_hints.cuh"
#include "include/cluster.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"

constexpr bool keep = sizeof(T) == 4;  // the exponentials, in the registers of their columns

// Loads 16 bytes that are read once. *from, which the compiler may reorder, was slower.
__device__ __forceinline__ uint4 load(const uint4* from)
{
    if (EVICT_LAST) return load_evict_last(from, evict_last_policy());
    return STREAMING ? __ldcs(from) : __ldca(from);
}

// RESIDENT blocks per multiprocessor: enough threads to keep enough bytes in flight, each with as
// many registers as that leaves.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, RESIDENT)
softmax_cluster(const T* __restrict__ x, T* __restrict__ y, int rows, int cols)
{
    __shared__ alignas(8) float2 messages[senders];         // a pair of every warp of the row
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    // A block may write to another only when that one has started: every block announces itself
    // here, and waits for the others before it sends.
    if (CLUSTER > 1) announce_block(&all_arrived, 8 * senders);

    // ---- load -----------------------------------------------------------------------------------
    // The packs of a row are dealt round-robin to all threads of the cluster. All loads come first,
    // so that none waits for another.
    const long long start = (long long)(blockIdx.x / CLUSTER) * cols;
    const uint4* from = reinterpret_cast<const uint4*>(x + start);
    uint4* to = reinterpret_cast<uint4*>(y + start);
    const int packs = cols / width;
    Pack v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * CLUSTER + rank) * THREADS + threadIdx.x;
        if (pack < packs) {
            v[k].bits = load(from + pack);
        } else {
            fill(v[k], minus_inf());
        }
    }

    // ---- reduce ---------------------------------------------------------------------------------
    const float thread_max = fmaxf(lowest, max_of(v));
    const float sum = sum_of<keep>(v, thread_max);

    // ---- exchange -------------------------------------------------------------------------------
    // Lane r sends the warp's pair to block r: data and arrival in one message, and one wait for
    // the warps of this block and of all others.
    const float2 message = warp_pair(thread_max, sum);
    if (CLUSTER == 1) {
        if (lane == 0) messages[warp] = message;
        __syncthreads();
    } else {
        cluster_wait();
        if (lane < CLUSTER) send(message, &messages[rank * warps + warp], &all_arrived, lane);
        mbarrier_wait(&all_arrived);
    }
    const float2 row_pair = merge_pairs(messages, senders);
    const float scale = fast_exp(thread_max - row_pair.x) / row_pair.y;

    // ---- write ----------------------------------------------------------------------------------
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * CLUSTER + rank) * THREADS + threadIdx.x;
        finish<keep>(v[k], thread_max, scale);
        if (pack < packs) store<STREAMING>(to + pack, v[k].bits);
    }
}

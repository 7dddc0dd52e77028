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
//           RESIDENT   = max(1, min(2048, 65536 / (4 * PACKS + 32)) / THREADS)
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
// Measured: 4307 GB/s, 1.00 of a copy at 1024 x 262144 (H200, 2026-11-27)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x. A row
// of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. A cluster of 16 must be allowed
// once: see cudaFuncSetAttribute and cudaFuncAttributeNonPortableClusterSizeAllowed. The exchange
// between blocks is that of QuACK (https://github.com/Dao-AILab/quack): each warp sends its pair to
// every block, whose mbarrier counts the bytes. Measured with -ftz=true, as CuPy compiles.
//
// In the Build table `row` is the bytes of a row, `size` those of an element, `l2` those of the L2;
// `share` is the packs (16 bytes each) of a block, `most` the largest number of packs per thread,
// measured on an H200, `fewest` the threads that it requires. From 16 KB of row, a block takes 8 KB
// to 22 KB (`most_bytes`), half of that in a small matrix, unless a few rows use clusters of 16.
// With few blocks (`few`), more threads with fewer packs each are faster. THREADS is the smallest
// number that has room for the packs, so that few lanes idle. RESIDENT leaves a thread
// 4 registers per pack and about 32 others. -DFLOAT16 or -DBFLOAT16 selects the dtype; without
// either it is float32.

#if !defined(CLUSTER) || !defined(THREADS) || !defined(PACKS) || !defined(RESIDENT) \
    || !defined(EVICT_LAST) || !defined(STREAMING)
#error "compile with all macros of the Build table: -DCLUSTER=4 -DTHREADS=128 -DPACKS=8 \
-DRESIDENT=8 -DEVICT_LAST=1 -DSTREAMING=1"
#endif

#include "include/cache_hints.cuh"
#include "include/cluster.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"

static_assert(CLUSTER >= 1 && CLUSTER <= 16, "there are clusters of up to 16 blocks");
static_assert(THREADS >= 32 && THREADS <= 1024 && THREADS % 32 == 0, "a block is whole warps");
static_assert(PACKS >= 1 && RESIDENT >= 1, "packs of a thread, blocks of a multiprocessor");
static_assert(EVICT_LAST == 0 || EVICT_LAST == 1, "EVICT_LAST is yes, 1, or no, 0");
static_assert(STREAMING == 0 || STREAMING == 1, "STREAMING is yes, 1, or no, 0");

constexpr bool keep = sizeof(T) == 4;     // the exponentials, in the registers of their columns
constexpr int warps = THREADS / 32;
constexpr int senders = warps * CLUSTER;  // warps that work on a row

// Loads 16 bytes that are read once. *from, which the compiler may reorder, was slower.
__device__ __forceinline__ uint4 load(const uint4* from)
{
    if (EVICT_LAST) return load_evict_last(from, evict_last_policy());
    return STREAMING ? __ldcs(from) : __ldca(from);
}

// ---- the kernel ---------------------------------------------------------------------------------

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
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            const float2 e = exponentials(v[k].columns[c], thread_max);
            sum += e.x + e.y;
            if (keep) v[k].columns[c] = to_T2(e);
        }

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
        // In 16 bits, a second exponential needs fewer registers than keeping the first. The empty
        // asm may change the bits; without it the compiler keeps the floats computed from them.
        uint4& bits = v[k].bits;
        if (!keep) asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            const T2 columns = v[k].columns[c];
            const float2 e = keep ? to_float2(columns) : exponentials(columns, thread_max);
            v[k].columns[c] = to_T2(make_float2(e.x * scale, e.y * scale));
        }
        if (pack < packs) store<STREAMING>(to + pack, bits);
    }
}

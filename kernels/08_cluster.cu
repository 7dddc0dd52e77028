// SPDX-License-Identifier: MIT
// Idea:     a cluster of small blocks shares a row and keeps it in registers; the blocks send their
//           (max, sum) pairs straight into one another's shared memory.
// Row:      CLUSTER blocks, 1 to 16
// Build:    CLUSTER      = 16 when rows <= 16 && row > 32768
//                        | 1 when row <= 8192
//                        | 2 when row < 32768 || size == 2 && row == 32768
//                        | 4 when row <= 65536 && rows > 64
//                        | 8 when row <= 131072
//                        | 16
//           share        = ceil_div(row / 16, CLUSTER)
//           THREADS      = 64 when share <= 128 || size == 4 && CLUSTER == 1 && share <= 256
//                        | 128 when size == 2 && rows <= 16 && share <= 400
//                        | 96 when share <= 256 || size == 4 && CLUSTER == 1
//                        | 128 when size == 4 && rows > 16 && rows <= 64 && share <= 1024
//                        | 192 when size == 4 && CLUSTER < 16
//                        | 192 when size == 4 && rows <= 16 && share <= 576
//                        | 256 when size == 4 && rows <= 16 && share <= 4096
//                        | 384 when size == 4 && rows <= 16
//                        | 128 when size == 4 && share <= 2048
//                        | 192 when size == 4 && rows <= 64 && share <= 3072
//                        | 256 when size == 4 && share <= 4096
//                        | 512 when size == 4
//                        | 256 when rows <= 16 && share <= 2048
//                        | 192 when share <= 512 && CLUSTER <= 2
//                        | 128 when share <= 800
//                        | 128 when share <= 1024 && (CLUSTER == 4 || CLUSTER == 16)
//                        | 256 when share <= 2048
//                        | 512
//           PACKS        = ceil_div(share, THREADS)
//           sm_threads   = 1536 when size == 2 && PACKS <= 4
//                        | 1280 when size == 2 && PACKS <= 6
//                        | 1024 when size == 2
//                        | 768 when CLUSTER == 16 && share > 1024 && rows > 16
//                        | THREADS
//           RESIDENT     = sm_threads / THREADS
//           EVICT_LAST   = 1 when 4 * rows * row > 5 * l2
//                        | 0 when 3 * rows * row > 2 * l2 || rows <= 128
//                        | 5 * rows * row > 2 * l2
//           STREAMING    = 1 when rows * row <= 1048576 || rows * row > 4 * l2
//                        | 1 when size == 2 && rows <= 16 && rows * row <= 4194304
//                        | 3 * rows * row > 2 * l2 && EVICT_LAST == 0
//           PROGRAMMATIC = 0
// Launch:   block = THREADS, block == THREADS, grid = rows * CLUSTER
// Shared:   0
// Columns:  row % 16 == 0 && share >= 64 && PACKS <= 4 * size
//           && row <= 16 * CLUSTER * THREADS * PACKS
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_90
// Reads:    1 read + 1 write
// Wastes:   past 16 blocks there is no larger cluster; a few rows leave most of the GPU idle (09).
// Measured: 4316 GB/s, 1.00 of a copy at 1024 x 262144 (H200, 2026-11-21)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x. A row
// of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. A cluster of 16 must be allowed
// once: see cudaFuncSetAttribute and cudaFuncAttributeNonPortableClusterSizeAllowed. The exchange
// between blocks is that of QuACK (https://github.com/Dao-AILab/quack): each warp sends its pair to
// every block, whose mbarrier counts the bytes. `share` is packs of 16 bytes. Tuned on an H200,
// measured with -ftz=true, as CuPy compiles.

#if !defined(CLUSTER) || !defined(THREADS) || !defined(PACKS) || !defined(RESIDENT) \
    || !defined(EVICT_LAST) || !defined(STREAMING) || !defined(PROGRAMMATIC)
#error "compile with all macros of the Build table: -DCLUSTER=4 -DTHREADS=192 -DPACKS=6 \
-DRESIDENT=1 -DEVICT_LAST=1 -DSTREAMING=1 -DPROGRAMMATIC=0"
#endif

#include "include/cache_hints.cuh"
#include "include/cluster.cuh"
#include "include/packs.cuh"
#include "include/programmatic_launch.cuh"
#include "include/reductions.cuh"

static_assert(CLUSTER >= 1 && CLUSTER <= 16, "there are clusters of up to 16 blocks");
static_assert(THREADS >= 32 && THREADS <= 1024 && THREADS % 32 == 0, "a block is whole warps");
static_assert(PACKS >= 1 && RESIDENT >= 1, "packs of a thread, blocks of a multiprocessor");
static_assert(EVICT_LAST == 0 || EVICT_LAST == 1, "EVICT_LAST is yes, 1, or no, 0");
static_assert(STREAMING == 0 || STREAMING == 1, "STREAMING is yes, 1, or no, 0");
static_assert(PROGRAMMATIC == 0 || PROGRAMMATIC == 1, "PROGRAMMATIC is yes, 1, or no, 0");

constexpr bool keep = sizeof(T) == 4;     // the exponentials, in the registers of their columns
constexpr int warps = THREADS / 32;
constexpr int senders = warps * CLUSTER;  // warps that work on a row

// Loads 16 bytes that are read once. After a programmatic launch the previous grid may have written
// x since this grid started: no read-only path. Not *from, which the compiler may reorder (slower).
__device__ __forceinline__ uint4 load(const uint4* from)
{
    if (EVICT_LAST && PROGRAMMATIC) return load_written_evict_last(from, evict_last_policy());
    if (EVICT_LAST) return load_evict_last(from, evict_last_policy());
    return STREAMING ? __ldcs(from) : __ldca(from);
}

// 2^(v * slope - origin) of both columns.
__device__ __forceinline__ float2 exponentials(T2 columns, float slope, float origin)
{
    const float2 v = to_float2(columns);
    return make_float2(fast_exp2(fmaf(v.x, slope, -origin)), fast_exp2(fmaf(v.y, slope, -origin)));
}

// ---- the kernel ---------------------------------------------------------------------------------

// RESIDENT blocks to a multiprocessor: so many threads that enough bytes are on their way, and each
// with as many registers as that leaves.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, RESIDENT)
softmax_cluster(const T* __restrict__ x, T* __restrict__ y, int rows, int cols)
{
    __shared__ alignas(8) float2 letters[senders];         // a pair of every warp of the row
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    // A block may write to another only when that one has started: every block announces itself
    // here, and waits for the others before it sends.
    if (CLUSTER > 1) announce_block(&all_arrived, 8 * senders);

    // After a programmatic launch this grid starts while the previous one still runs; it must not
    // read x before that one is done.
    if (PROGRAMMATIC) {
        launch_dependents();
        wait_for_previous_grid();
    }

    // ---- load -----------------------------------------------------------------------------------
    // The packs of a row are dealt round-robin to all threads of the cluster. All loads come first,
    // so that none waits for another.
    const long long start = (long long)(blockIdx.x / CLUSTER) * cols;
    const uint4* from = reinterpret_cast<const uint4*>(x + start);
    uint4* to = reinterpret_cast<uint4*>(y + start);
    const int packs = cols / (2 * pairs_per_pack);
    const float minus_inf = __int_as_float(0xff800000);  // adds nothing: 2^-inf = 0
    Pack v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * CLUSTER + rank) * THREADS + threadIdx.x;
        if (pack < packs) {
            v[k].bits = load(from + pack);
        } else {
#pragma unroll
            for (int c = 0; c < pairs_per_pack; ++c)
                v[k].columns[c] = to_T2(make_float2(minus_inf, minus_inf));
        }
    }

    // ---- reduce ---------------------------------------------------------------------------------
    const float log2e = 1.44269504f;
    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu
    T2 largest = v[0].columns[0];
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) largest = max2(largest, v[k].columns[c]);
    const float2 both = to_float2(largest);
    const float thread_max = fmaxf(lowest, fmaxf(both.x, both.y));

    // exp(x - max) = 2^(x * log2(e) - shift), one multiply-add before the exponential; from here on
    // maxima are shifts. How a shift is rounded cancels in the division, but is too much past 2^29
    // (a mask of -1e30, say): there 2^(x - max) will do, and 2^28 keeps the shifts in order.
    const bool far = fabsf(thread_max) >= 536870912.0f;
    const float shift = far ? thread_max + copysignf(268435456.0f, thread_max)
                            : __fmul_rn(thread_max, log2e);
    const float slope = far ? 1.0f : log2e, origin = far ? thread_max : shift;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            const float2 e = exponentials(v[k].columns[c], slope, origin);
            sum += e.x + e.y;
            if (keep) v[k].columns[c] = to_T2(e);
        }
    const float warp_shift = warp_max(shift);
    sum = warp_sum(sum * fast_exp2(shift - warp_shift));

    // ---- exchange -------------------------------------------------------------------------------
    // Lane r sends the warp's pair to block r: data and arrival in one message, and one wait for
    // the warps of this block and of all others.
    if (CLUSTER == 1) {
        if (lane == 0) letters[warp] = make_float2(warp_shift, sum);
        __syncthreads();
    } else {
        cluster_wait();
        const float2 letter = make_float2(warp_shift, sum);
        if (lane < CLUSTER) send(letter, &letters[rank * warps + warp], &all_arrived, lane);
        mbarrier_wait(&all_arrived);
    }

    float row_shift = lowest;
#pragma unroll
    for (int i = lane; i < senders; i += 32) row_shift = fmaxf(row_shift, letters[i].x);
    row_shift = warp_max(row_shift);
    float row_sum = 0.0f;
#pragma unroll
    for (int i = lane; i < senders; i += 32)
        row_sum += letters[i].y * fast_exp2(letters[i].x - row_shift);
    const float scale = fast_exp2(shift - row_shift) / warp_sum(row_sum);

    // ---- write ----------------------------------------------------------------------------------
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * CLUSTER + rank) * THREADS + threadIdx.x;
        // In 16 bits, a second exponential needs fewer registers than keeping the first. This says
        // that the bits may be new ones: else the compiler keeps what it computed from them.
        uint4& bits = v[k].bits;
        if (!keep) asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            const T2 columns = v[k].columns[c];
            const float2 e = keep ? to_float2(columns) : exponentials(columns, slope, origin);
            v[k].columns[c] = to_T2(make_float2(e.x * scale, e.y * scale));
        }
        if (pack < packs) store<STREAMING>(to + pack, bits);
    }
}

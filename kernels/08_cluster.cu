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

// T2: two neighbouring columns, how they become floats and back, and the larger of each.
#if defined(FLOAT16)
#include <cuda_fp16.h>
using T = __half;
using T2 = __half2;
__device__ __forceinline__ float2 to_float2(T2 v) { return __half22float2(v); }
__device__ __forceinline__ T2 to_T2(float2 v) { return __float22half2_rn(v); }
__device__ __forceinline__ T2 max2(T2 a, T2 b) { return __hmax2(a, b); }
#elif defined(BFLOAT16)
#include <cuda_bf16.h>
using T = __nv_bfloat16;
using T2 = __nv_bfloat162;
__device__ __forceinline__ float2 to_float2(T2 v) { return __bfloat1622float2(v); }
__device__ __forceinline__ T2 to_T2(float2 v) { return __float22bfloat162_rn(v); }
__device__ __forceinline__ T2 max2(T2 a, T2 b) { return __hmax2(a, b); }
#else
using T = float;
using T2 = float2;
__device__ __forceinline__ float2 to_float2(T2 v) { return v; }
__device__ __forceinline__ T2 to_T2(float2 v) { return v; }
__device__ __forceinline__ T2 max2(T2 a, T2 b)
{
    return make_float2(fmaxf(a.x, b.x), fmaxf(a.y, b.y));
}
#endif

#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER)
#else
#define IN_CLUSTERS  // a block alone: any launch will do
#endif

static_assert(CLUSTER >= 1 && CLUSTER <= 16, "there are clusters of up to 16 blocks");
static_assert(THREADS >= 32 && THREADS <= 1024 && THREADS % 32 == 0, "a block is whole warps");
static_assert(PACKS >= 1 && RESIDENT >= 1, "packs of a thread, blocks of a multiprocessor");
static_assert(EVICT_LAST == 0 || EVICT_LAST == 1, "EVICT_LAST is yes, 1, or no, 0");
static_assert(STREAMING == 0 || STREAMING == 1, "STREAMING is yes, 1, or no, 0");
static_assert(PROGRAMMATIC == 0 || PROGRAMMATIC == 1, "PROGRAMMATIC is yes, 1, or no, 0");

constexpr int twos = 16 / sizeof(T2);     // of 16 bytes
constexpr bool keep = sizeof(T) == 4;     // the exponentials, in the registers of their columns
constexpr int warps = THREADS / 32;
constexpr int senders = warps * CLUSTER;  // warps that work on a row

// ---- 16 bytes -----------------------------------------------------------------------------------

// 16 bytes: one access.
union Pack {
    uint4 bits;
    T2 columns[twos];
    __device__ Pack() {}
};

// Stores 16 bytes: the caches let them go first if STREAMING, else as usual.
__device__ __forceinline__ void store(uint4* to, uint4 bits)
{
    if (STREAMING)
        __stcs(to, bits);
    else
        *to = bits;
}

// What asks the L2 to evict last what comes with it. Each load makes its own: as NVRTC 13.0
// compiles this for sm_90, each load then has a branch, and the cluster's wait comes after all
// loads. With one policy for all, a load is a predicated instruction, and the wait moves up between
// the loads. No record says which is faster.
__device__ __forceinline__ unsigned long long evict_last_policy()
{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Loads 16 bytes that are read once. With EVICT_LAST the L2 is asked to evict them last anyway:
// most large matrices take less time; why is open (notebooks/deeper/08_evict_last.ipynb). Memory
// that may be written while this grid runs must not be loaded as ".nc", and after a programmatic
// launch the previous grid may still write x. Not just *from: the compiler may move that, and a few
// rows take longer then.
__device__ __forceinline__ uint4 load(const uint4* from)
{
#if EVICT_LAST
#if PROGRAMMATIC
#define LOAD "ld.global"
#else
#define LOAD "ld.global.nc"
#endif
    uint4 bits;
    asm volatile(LOAD ".L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(from), "l"(evict_last_policy()));
    return bits;
#else
    return STREAMING ? __ldcs(from) : __ldca(from);
#endif
}

// ---- exponentials and warps ---------------------------------------------------------------------

// 2 to the power of value, but 0 where that is below 2^-126: one instruction with any options.
__device__ __forceinline__ float fast_exp2(float value)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

// 2^(v * slope - origin) of both columns.
__device__ __forceinline__ float2 exponentials(T2 columns, float slope, float origin)
{
    const float2 v = to_float2(columns);
    return make_float2(fast_exp2(fmaf(v.x, slope, -origin)), fast_exp2(fmaf(v.y, slope, -origin)));
}

// The largest of 32 lanes' values, in every lane.
__device__ __forceinline__ float warp_max(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
    return value;
}

// The sum of 32 lanes' values, in every lane.
__device__ __forceinline__ float warp_sum(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffff, value, distance);
    return value;
}

// ---- letters between the blocks of a cluster ----------------------------------------------------

__device__ __forceinline__ unsigned place(const void* shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ unsigned place_in(const void* shared, int rank)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place(shared)), "r"(rank));
    return there;
}

// Makes an mbarrier of which each phase ends with one arrival and the bytes that this announces.
__device__ __forceinline__ void mbarrier_init(unsigned long long* mbarrier)
{
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(place(mbarrier)) : "memory");
}

// The arrival, and how many bytes this phase waits for.
__device__ __forceinline__ void mbarrier_expect(unsigned long long* mbarrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(place(mbarrier)),
                 "r"(bytes) : "memory");
}

// Comes between mbarrier_init and the cluster's barrier: a thread that has waited there finds the
// mbarrier initialized. The fence orders mbarrier.init alone (PTX ISA, "fence"). mbarrier_expect
// may come before it or after: the phase cannot end without that arrival, however early bytes
// arrive.
__device__ __forceinline__ void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Waits until the first phase of an mbarrier has ended: then its bytes can be read.
__device__ __forceinline__ void mbarrier_wait(unsigned long long* mbarrier)
{
    for (unsigned ended = 0; !ended;)
        asm volatile(
            "{ .reg .pred p;"
            " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;"
            " selp.u32 %0, 1, 0, p; }" : "=r"(ended) : "r"(place(mbarrier)) : "memory");
}

// The two halves of a barrier of the cluster. This arrival orders no memory: what must be read or
// written before it needs a fence. `.aligned` demands that all threads of a warp execute this same
// instruction, under no condition on which they differ (PTX ISA, "barrier.cluster").
// __syncthreads() demands as much; after a branch such as threadIdx.x == 0 the compiler brings the
// warp together.
__device__ __forceinline__ void cluster_arrive_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// Writes a letter to its place in another block, whose mbarrier counts its bytes: data and arrival
// are one message.
__device__ __forceinline__ void send(float2 letter, const float2* own, unsigned long long* mbarrier,
                                     int rank)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
        ::"r"(place_in(own, rank)), "f"(letter.x), "f"(letter.y), "r"(place_in(mbarrier, rank))
        : "memory");
}

// ---- the grids before and behind ----------------------------------------------------------------

// Lets the next grid of the stream start early, if it was launched to: as soon as every block of
// this one has said so or has ended.
__device__ __forceinline__ void launch_dependents()
{
    asm volatile("griddepcontrol.launch_dependents;");
}

// Waits until the grid before has ended and what it wrote is there.
__device__ __forceinline__ void wait_for_previous_grid()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
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
    // here, and waits for the others before it sends. (Compilers move that wait up to the loads.)
    if (CLUSTER > 1 && threadIdx.x == 0) {
        mbarrier_init(&all_arrived);
        mbarrier_expect(&all_arrived, 8 * senders);
        fence_mbarrier_init();
    }
    if (CLUSTER > 1) cluster_arrive_relaxed();

    // After a programmatic launch this grid starts while the previous one still runs; it must not
    // read x before that one is done.
    if (PROGRAMMATIC) {
        launch_dependents();
        wait_for_previous_grid();
    }

    // ---- load -----------------------------------------------------------------------------------
    // The packs of a row go round all threads of the cluster. All loads come first, so that none
    // waits for another.
    const long long start = (long long)(blockIdx.x / CLUSTER) * cols;
    const uint4* from = reinterpret_cast<const uint4*>(x + start);
    uint4* to = reinterpret_cast<uint4*>(y + start);
    const int packs = cols / (2 * twos);
    const float minus_inf = __int_as_float(0xff800000);  // adds nothing: 2^-inf = 0
    Pack v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * CLUSTER + rank) * THREADS + threadIdx.x;
        if (pack < packs) {
            v[k].bits = load(from + pack);
        } else {
#pragma unroll
            for (int c = 0; c < twos; ++c)
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
        for (int c = 0; c < twos; ++c) largest = max2(largest, v[k].columns[c]);
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
        for (int c = 0; c < twos; ++c) {
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
        for (int c = 0; c < twos; ++c) {
            const T2 columns = v[k].columns[c];
            const float2 e = keep ? to_float2(columns) : exponentials(columns, slope, origin);
            v[k].columns[c] = to_T2(make_float2(e.x * scale, e.y * scale));
        }
        if (pack < packs) store(to + pack, bits);
    }
}

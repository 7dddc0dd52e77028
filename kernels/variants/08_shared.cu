// SPDX-License-Identifier: MIT
// Idea:     the row stays in shared memory instead of in registers, as it came: asynchronous copies
//           bring it there, and the exponentials are computed twice.
// Row:      CLUSTER blocks, 1 to 16
// Build:    CLUSTER = 1 when row <= 32768
//                   | 8 when row <= 131072
//                   | 16
//           share   = ceil_div(row / 16, CLUSTER)
//           THREADS = 128 when share <= 2048
//                   | 256 when share <= 6144
//                   | 512
//           PACKS   = ceil_div(share, THREADS)
// Launch:   block = THREADS, block == THREADS, grid = rows * CLUSTER
// Shared:   16 * THREADS * PACKS
// Columns:  row % 16 == 0 && share >= 64 && row <= 16 * CLUSTER * THREADS * PACKS
//           && THREADS * PACKS <= 14080
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_90
// Reads:    1 read + 1 write
// Wastes:   reads each column three times from shared memory and computes its exponential twice.
// Measured: 4061 GB/s, 0.95 of a copy at 65536 x 4096 (H200, 2026-11-21)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. More than 48 KB of shared
// memory and a cluster of 16 must be allowed once: see cudaFuncSetAttribute. Blocks exchange pairs
// as in 08_cluster.cu, as QuACK does (https://github.com/Dao-AILab/quack). Measured with -ftz=true,
// as CuPy compiles.

#if !defined(CLUSTER) || !defined(THREADS) || !defined(PACKS)
#error "compile with all macros of the Build table: -DCLUSTER=8 -DTHREADS=128 -DPACKS=8"
#endif

// T2: two neighbouring columns, and how they become floats and back.
#if defined(FLOAT16)
#include <cuda_fp16.h>
using T = __half;
using T2 = __half2;
__device__ __forceinline__ float2 to_float2(T2 v) { return __half22float2(v); }
__device__ __forceinline__ T2 to_T2(float2 v) { return __float22half2_rn(v); }
#elif defined(BFLOAT16)
#include <cuda_bf16.h>
using T = __nv_bfloat16;
using T2 = __nv_bfloat162;
__device__ __forceinline__ float2 to_float2(T2 v) { return __bfloat1622float2(v); }
__device__ __forceinline__ T2 to_T2(float2 v) { return __float22bfloat162_rn(v); }
#else
using T = float;
using T2 = float2;
__device__ __forceinline__ float2 to_float2(T2 v) { return v; }
__device__ __forceinline__ T2 to_T2(float2 v) { return v; }
#endif

#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER)
#else
#define IN_CLUSTERS  // a block alone: any launch will do
#endif

static_assert(CLUSTER >= 1 && CLUSTER <= 16, "there are clusters of up to 16 blocks");
static_assert(THREADS >= 32 && THREADS <= 1024 && THREADS % 32 == 0, "a block is whole warps");
static_assert(PACKS >= 1, "a thread has at least one pack");

constexpr int twos = 16 / sizeof(T2);     // of 16 bytes
constexpr int warps = THREADS / 32;
constexpr int senders = warps * CLUSTER;  // warps that work on a row
constexpr int step = CLUSTER * THREADS;   // from one pack of a thread to its next

// ---- 16 bytes, exponentials and warps -----------------------------------------------------------

// 16 bytes: one access.
union Pack {
    uint4 bits;
    T2 columns[twos];
    __device__ Pack() {}
};

// 2 to the power of value, but 0 where that is below 2^-126: one instruction with any options.
__device__ __forceinline__ float fast_exp2(float value)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
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

// Comes between mbarrier_init and the cluster's barrier: see 08_cluster.cu.
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
// written before it needs a fence.
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

// ---- copies into shared memory ------------------------------------------------------------------

// Starts the copy of a pack to a place in shared memory.
__device__ __forceinline__ void copy_async(unsigned to, const uint4* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Waits for all copies that this thread has started.
__device__ __forceinline__ void copy_async_wait_all()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// ---- the kernel ---------------------------------------------------------------------------------

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS)
softmax_shared(const T* __restrict__ x, T* __restrict__ y, int rows, int cols)
{
    extern __shared__ uint4 cache[];  // this block's packs of the row; a thread uses only its own
    __shared__ alignas(8) float2 letters[senders];         // a pair of every warp of the row
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (CLUSTER > 1 && threadIdx.x == 0) {
        mbarrier_init(&all_arrived);
        mbarrier_expect(&all_arrived, 8 * senders);
        fence_mbarrier_init();
    }
    if (CLUSTER > 1) cluster_arrive_relaxed();

    // ---- load -----------------------------------------------------------------------------------
    // No register waits for this data, so that a multiprocessor can hold more of it.
    const long long start = (long long)(blockIdx.x / CLUSTER) * cols;
    const int first = rank * THREADS + threadIdx.x;
    const int packs = cols / (2 * twos);
    const uint4* from = reinterpret_cast<const uint4*>(x + start);
    uint4* to = reinterpret_cast<uint4*>(y + start);
    uint4* own = cache + threadIdx.x;
#pragma unroll 8
    for (int k = 0; k < PACKS; ++k)
        if (first + k * step < packs)
            copy_async(place(own + k * THREADS), from + first + k * step);
    copy_async_wait_all();

    // ---- reduce ---------------------------------------------------------------------------------
    const float log2e = 1.44269504f;
    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu
    float thread_max = lowest;
#pragma unroll 8
    for (int k = 0; k < PACKS; ++k) {
        if (first + k * step >= packs) break;
        Pack pack;
        pack.bits = own[k * THREADS];
#pragma unroll
        for (int c = 0; c < twos; ++c) {
            const float2 v = to_float2(pack.columns[c]);
            thread_max = fmaxf(thread_max, fmaxf(v.x, v.y));
        }
    }

    // As in 08_cluster.cu: shift = max * log2(e), unless the columns are very large.
    const bool far = fabsf(thread_max) >= 536870912.0f;
    const float shift = far ? thread_max + copysignf(268435456.0f, thread_max)
                            : __fmul_rn(thread_max, log2e);
    const float slope = far ? 1.0f : log2e, origin = far ? thread_max : shift;
    float sum = 0.0f;
#pragma unroll 8
    for (int k = 0; k < PACKS; ++k) {
        if (first + k * step >= packs) break;
        Pack pack;
        pack.bits = own[k * THREADS];
#pragma unroll
        for (int c = 0; c < twos; ++c) {
            const float2 v = to_float2(pack.columns[c]);
            sum += fast_exp2(fmaf(v.x, slope, -origin)) + fast_exp2(fmaf(v.y, slope, -origin));
        }
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
#pragma unroll 8
    for (int k = 0; k < PACKS; ++k) {
        if (first + k * step >= packs) break;
        Pack pack;
        pack.bits = own[k * THREADS];
#pragma unroll
        for (int c = 0; c < twos; ++c) {
            const float2 v = to_float2(pack.columns[c]);
            pack.columns[c] = to_T2(make_float2(fast_exp2(fmaf(v.x, slope, -origin)) * scale,
                                                fast_exp2(fmaf(v.y, slope, -origin)) * scale));
        }
        __stcs(to + first + k * step, pack.bits);
    }
}

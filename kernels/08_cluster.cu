// SPDX-License-Identifier: MIT
// Idea:     a cluster of small blocks shares a row and keeps it in registers; the blocks send their
//           (max, sum) pairs straight into one another's shared memory.
// Row:      CLUSTER blocks, 1 to 16
// Build:    CLUSTER = 16 when rows <= 16 && row > 32768
//                   | 1 when row <= 8192
//                   | 2 when row < 32768 || size == 2 && row == 32768
//                   | 4 when row <= 65536
//                   | 8 when row <= 131072
//                   | 16
//           share   = ceil_div(row / 16, CLUSTER)
//           THREADS = 64 when share <= 128
//                   | 96 when share <= 256 || size == 4 && CLUSTER == 1
//                   | 192 when size == 4 && CLUSTER < 16
//                   | 192 when size == 4 && rows <= 16 && share <= 576
//                   | 384 when size == 4 && rows <= 16
//                   | 128 when size == 4 && share <= 2048
//                   | 256 when size == 4 && share <= 4096
//                   | 512 when size == 4
//                   | 192 when rows <= 16 && share > 400 && share <= 1024
//                   | 192 when share <= 512 && CLUSTER <= 2
//                   | 128 when share <= 800 || share <= 1024 && CLUSTER == 16
//                   | 192 when share <= 1024 && CLUSTER == 4
//                   | 256 when share <= 2048
//                   | 512
//           PACKS   = ceil_div(share, THREADS)
//           sm_threads = THREADS when size == 2 && rows <= 16 && THREADS == 192
//                      | 1536 when size == 2 && PACKS <= 4
//                      | 1280 when size == 2 && PACKS <= 6
//                      | 1024 when size == 2
//                      | 768 when CLUSTER == 16 && share > 1024 && rows > 16
//                      | THREADS
//           RESIDENT   = sm_threads / THREADS
//           EVICT_LAST = 1 when rows * row > l2
//                      | 0
//           PROGRAMMATIC = 1 when rows <= 16
//                        | 0
// Launch:   block = THREADS, block == THREADS, grid = rows * CLUSTER
// Shared:   0
// Columns:  row % 16 == 0 && share >= 64 && PACKS <= 4 * size
//           && row <= 16 * CLUSTER * THREADS * PACKS
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_90
// Reads:    1 read + 1 write
// Wastes:   past 16 blocks there is no larger cluster; a few rows leave most of the GPU idle (09).
// Measured: 4316 GB/s, 1.00 of a copy, at 1024 x 262144 (NVIDIA H200, 2026-11-21)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. A cluster of 16 must be
// allowed once: see cudaFuncSetAttribute and cudaFuncAttributeNonPortableClusterSizeAllowed.

#if !defined(CLUSTER) || !defined(EVICT_LAST) || !defined(PROGRAMMATIC)
#error "compile with the macros of the Build line: -DCLUSTER=4 -DTHREADS=192 -DEVICT_LAST=1 ..."
#endif

// Two columns, how they become floats and back, and the larger of each.
#if defined(FLOAT16)
#include <cuda_fp16.h>
using T = __half;
using Pair = __half2;
__device__ __forceinline__ float2 widen(Pair pair) { return __half22float2(pair); }
__device__ __forceinline__ Pair narrow(float2 pair) { return __float22half2_rn(pair); }
__device__ __forceinline__ Pair larger(Pair a, Pair b) { return __hmax2(a, b); }
#elif defined(BFLOAT16)
#include <cuda_bf16.h>
using T = __nv_bfloat16;
using Pair = __nv_bfloat162;
__device__ __forceinline__ float2 widen(Pair pair) { return __bfloat1622float2(pair); }
__device__ __forceinline__ Pair narrow(float2 pair) { return __float22bfloat162_rn(pair); }
__device__ __forceinline__ Pair larger(Pair a, Pair b) { return __hmax2(a, b); }
#else
using T = float;
using Pair = float2;
__device__ __forceinline__ float2 widen(Pair pair) { return pair; }
__device__ __forceinline__ Pair narrow(float2 pair) { return pair; }
__device__ __forceinline__ Pair larger(Pair a, Pair b)
{
    return make_float2(fmaxf(a.x, b.x), fmaxf(a.y, b.y));
}
#endif

#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER)
#else
#define IN_CLUSTERS  // a block alone: any launch will do
#endif

constexpr int pairs = 16 / sizeof(Pair);
constexpr bool keep = sizeof(T) == 4;     // the exponentials, in the registers of their columns
constexpr int warps = THREADS / 32;
constexpr int senders = warps * CLUSTER;  // warps that work on a row

// 16 bytes: one access.
union Pack {
    uint4 bits;
    Pair pair[pairs];
    __device__ Pack() {}
};

// Loads 16 bytes that are read once. Where x has 64 MB or more, and an H200's L2 has 60, the L2 is
// asked to evict them last all the same: what it then evicts first is y.
__device__ __forceinline__ uint4 load(const uint4* from)
{
#if EVICT_LAST
    uint4 bits;
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(from), "l"(policy));
    return bits;
#else
    return __ldcs(from);
#endif
}

// 2 to the power of value, but 0 where that is below 2^-126: one instruction with any options.
__device__ __forceinline__ float power(float value)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

__device__ __forceinline__ float2 powers(Pair pair, float slope, float origin)
{
    const float2 v = widen(pair);
    return make_float2(power(fmaf(v.x, slope, -origin)), power(fmaf(v.y, slope, -origin)));
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

// RESIDENT blocks to a multiprocessor: so many threads that enough bytes are on their way, and each
// with as many registers as that leaves.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, RESIDENT)
softmax_cluster(const T* __restrict__ x, T* __restrict__ y, int rows, int cols)
{
    __shared__ alignas(8) float2 letters[senders];        // (max, sum) of every warp of the row
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    // A block may write to another only when that one has started: every block announces itself
    // here, and waits for the others as late as it can.
    if (CLUSTER > 1 && threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(place(&all_arrived)));
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(place(&all_arrived)),
                     "n"(8 * senders));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CLUSTER > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");

    // After a programmatic launch this grid starts while the previous one still runs; it must not
    // read x before that one is done.
    if (PROGRAMMATIC) {
        asm volatile("griddepcontrol.launch_dependents;");
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }

    // The packs of a row go round all threads of the cluster. All loads come first, so that none
    // waits for another.
    const long long start = (long long)(blockIdx.x / CLUSTER) * cols;
    const uint4* from = reinterpret_cast<const uint4*>(x + start);
    uint4* to = reinterpret_cast<uint4*>(y + start);
    const int packs = cols / (2 * pairs);
    const float minus_inf = __int_as_float(0xff800000);
    Pack v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * CLUSTER + rank) * THREADS + threadIdx.x;
        if (pack < packs) {
            v[k].bits = load(from + pack);
        } else {
#pragma unroll
            for (int p = 0; p < pairs; ++p)
                v[k].pair[p] = narrow(make_float2(minus_inf, minus_inf));
        }
    }

    const float log2e = 1.44269504f;
    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu
    Pair largest = v[0].pair[0];
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int p = 0; p < pairs; ++p) largest = larger(largest, v[k].pair[p]);
    const float2 both = widen(largest);
    const float thread_max = fmaxf(lowest, fmaxf(both.x, both.y));

    // exp(x - max) = 2^(x * log2(e) - shift): one multiply-add before each exponential; from here
    // on maxima are shifts. The rounding of shift leaves with the division, but it grows with x:
    // past 2^29, where floats are 64 apart, differences do instead; 2^28 keeps shifts in order.
    const bool far = fabsf(thread_max) >= 536870912.0f;
    const float shift = far ? thread_max + copysignf(268435456.0f, thread_max)
                            : __fmul_rn(thread_max, log2e);
    const float slope = far ? 1.0f : log2e, origin = far ? thread_max : shift;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int p = 0; p < pairs; ++p) {
            const float2 e = powers(v[k].pair[p], slope, origin);
            sum += e.x + e.y;
            if (keep) v[k].pair[p] = narrow(e);
        }
    const float warp_shift = warp_max(shift);
    sum = warp_sum(sum * power(shift - warp_shift));

    // Lane r sends the warp's pair to block r: data and arrival in one message, and one wait for
    // the warps of this block and of all others.
    if (CLUSTER == 1) {
        if (lane == 0) letters[warp] = make_float2(warp_shift, sum);
        __syncthreads();
    } else {
        asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
        if (lane < CLUSTER)
            asm volatile(
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                ::"r"(place_in(&letters[rank * warps + warp], lane)), "f"(warp_shift), "f"(sum),
                "r"(place_in(&all_arrived, lane)) : "memory");
        for (unsigned arrived = 0; !arrived;)
            asm volatile(
                "{ .reg .pred p;"
                " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;"
                " selp.u32 %0, 1, 0, p; }" : "=r"(arrived) : "r"(place(&all_arrived)) : "memory");
    }

    float row_shift = lowest;
#pragma unroll
    for (int i = lane; i < senders; i += 32) row_shift = fmaxf(row_shift, letters[i].x);
    row_shift = warp_max(row_shift);
    float row_sum = 0.0f;
#pragma unroll
    for (int i = lane; i < senders; i += 32)
        row_sum += letters[i].y * power(letters[i].x - row_shift);
    const float scale = power(shift - row_shift) / warp_sum(row_sum);

#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * CLUSTER + rank) * THREADS + threadIdx.x;
        // In 16 bits, a second exponential needs fewer registers than keeping the first. This says
        // that the bits may be new ones: else the compiler keeps what it computed from them.
        uint4& bits = v[k].bits;
        if (!keep) asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
#pragma unroll
        for (int p = 0; p < pairs; ++p) {
            const float2 e = keep ? widen(v[k].pair[p]) : powers(v[k].pair[p], slope, origin);
            v[k].pair[p] = narrow(make_float2(e.x * scale, e.y * scale));
        }
        if (pack < packs) __stcs(to + pack, bits);
    }
}

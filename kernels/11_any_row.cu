// SPDX-License-Identifier: MIT
// Idea:     a row that starts anywhere: from its first to its last boundary of 16 bytes it is moved
//           in packs, what sticks out by element; where y starts elsewhere than x, a lane passes on
//           to the next what the next one's pack of y begins with.
// Row:      CLUSTER blocks, 1 to 16
// Build:    packs        = row / 16
//           CLUSTER      = 1 when capability < 90 || packs <= 2048
//                        | 16 when rows <= 16
//                        | 2 when packs <= 4096
//                        | 4 when packs <= 8192
//                        | 8 when packs <= 16384 || size == 2 && packs <= 26624
//                        | 16
//           share        = ceil_div(packs, CLUSTER)
//           THREADS      = 64 when share <= 256
//                        | 128 when share <= 512 || size == 2 && share <= 1024
//                        | 192 when share > 1024 && share <= 1536
//                        | 256 when share <= 3328
//                        | 384 when share <= 4224 && CLUSTER > 1
//                        | 512 when share <= 4096
//                        | 1024
//           PACKS        = ceil_div(share, THREADS)
//           LATE         = 0 when x_stride * size % 16 == y_stride * size % 16
//                        | 1
//           sm_threads   = 768 when PACKS > 8 || LATE == 1 && size == 2
//                        | 1024
//           RESIDENT     = max(1, sm_threads / THREADS)
//           EVICT_LAST   = 1 when 4 * rows * row > 5 * l2 && capability >= 80
//                        | 0
// Launch:   block = THREADS, block == THREADS, grid = rows * CLUSTER
// Shared:   0
// Columns:  share >= 64 && share <= 8192 && packs <= CLUSTER * THREADS * PACKS && PACKS <= 16
// Align:    size
// Strides:  x_stride, y_stride
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   a block for a row is too much for a short one (variants/11_short_rows.cu); 16 blocks
//           hold 2 MB at most (variants/11_any_length.cu).
// Measured: 4313 GB/s, 1.00 of a copy at 5340 x 50257 (H200, 2026-11-22)
//
// y[row] = softmax(x[row]); row r of x begins at x + r * x_stride, of y at y + r * y_stride, at any
// element. y must not overlap x; what lies between two rows is neither read nor written. With
// LATE=0 each row of x and of y must start equally far from a boundary of 16 bytes. A row of all
// -inf, or one with NaN or +inf, gives NaN, as in PyTorch. Clusters need sm_90; one of 16 must be
// allowed once: see cudaFuncSetAttribute and cudaFuncAttributeNonPortableClusterSizeAllowed. Blocks
// exchange pairs as in 08_cluster.cu, as QuACK does (https://github.com/Dao-AILab/quack). Tuned on
// an H200, measured with -ftz=true, as CuPy compiles.

#if !defined(CLUSTER) || !defined(THREADS) || !defined(PACKS) || !defined(LATE) \
    || !defined(RESIDENT) || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DCLUSTER=4 -DTHREADS=256 -DPACKS=8 \
-DLATE=0 -DRESIDENT=4 -DEVICT_LAST=1"
#endif

// T2: two neighbouring columns. How one and two become floats and back, and the larger of each.
#if defined(FLOAT16)
#include <cuda_fp16.h>
using T = __half;
using T2 = __half2;
__device__ __forceinline__ float to_float(T v) { return __half2float(v); }
__device__ __forceinline__ T to_T(float v) { return __float2half_rn(v); }
__device__ __forceinline__ float2 to_float2(T2 v) { return __half22float2(v); }
__device__ __forceinline__ T2 to_T2(float2 v) { return __float22half2_rn(v); }
__device__ __forceinline__ T2 max2(T2 a, T2 b) { return __hmax2(a, b); }
#elif defined(BFLOAT16)
#include <cuda_bf16.h>
using T = __nv_bfloat16;
using T2 = __nv_bfloat162;
__device__ __forceinline__ float to_float(T v) { return __bfloat162float(v); }
__device__ __forceinline__ T to_T(float v) { return __float2bfloat16_rn(v); }
__device__ __forceinline__ float2 to_float2(T2 v) { return __bfloat1622float2(v); }
__device__ __forceinline__ T2 to_T2(float2 v) { return __float22bfloat162_rn(v); }
__device__ __forceinline__ T2 max2(T2 a, T2 b) { return __hmax2(a, b); }
#else
using T = float;
using T2 = float2;
__device__ __forceinline__ float to_float(T v) { return v; }
__device__ __forceinline__ T to_T(float v) { return v; }
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
static_assert(LATE == 0 || LATE == 1, "LATE is yes, 1, or no, 0");
static_assert(EVICT_LAST == 0 || EVICT_LAST == 1, "EVICT_LAST is yes, 1, or no, 0");

constexpr int twos = 16 / sizeof(T2);     // of 16 bytes
constexpr int width = 16 / sizeof(T);     // columns of 16 bytes
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

// What asks the L2 to evict last what comes with it; each load makes its own, as in 08_cluster.cu.
__device__ __forceinline__ unsigned long long evict_last_policy()
{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Loads 16 bytes that are read once, with the hint of 08_cluster.cu where x is large.
__device__ __forceinline__ uint4 load(const uint4* from)
{
#if EVICT_LAST
    uint4 bits;
    asm volatile("ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(from), "l"(evict_last_policy()));
    return bits;
#else
    return *from;
#endif
}

// ---- where y starts elsewhere than x ------------------------------------------------------------

// 16 bytes out of 32, from the one at `skip` columns on: in steps of two words, one word, half one.
__device__ __forceinline__ uint4 sixteen_bytes_at(uint4 left, uint4 right, int skip)
{
    unsigned w[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
    const int bytes = skip * sizeof(T);
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = bytes & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = bytes & 4 ? w[i + 1] : w[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = bytes & 2 ? __funnelshift_r(w[i], w[i + 1], 16) : w[i];
    return make_uint4(w[0], w[1], w[2], w[3]);
}

// Writes 16 bytes of each lane to a place `late` columns past a boundary: from the boundary on, the
// last columns of the pack before and the first of its own. The pack before is the previous lane's;
// lane 0 kept it from the last call. By element: the columns of a `first` pack, which has none
// before it, up to the next boundary, and those of a `last` one from its last boundary on.
__device__ __forceinline__ void store_late(T* to, int late, const Pack& pack, bool here, bool first,
                                           bool last, uint4& kept)
{
    const int lane = threadIdx.x % 32, from = (lane + 31) % 32;
    const uint4 own = pack.bits;
    const uint4 passed = make_uint4(
        __shfl_sync(0xffffffff, own.x, from), __shfl_sync(0xffffffff, own.y, from),
        __shfl_sync(0xffffffff, own.z, from), __shfl_sync(0xffffffff, own.w, from));
    const uint4 before = lane > 0 ? passed : kept;
    kept = passed;
    if (here && !first)
        __stwb(reinterpret_cast<uint4*>(to - late), sixteen_bytes_at(before, own, width - late));
    if (first || last)
#pragma unroll
        for (int c = 0; c < width; ++c)
            if (c < width - late ? first : last)
                to[c] = c % 2 ? pack.columns[c / 2].y : pack.columns[c / 2].x;
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

// ---- the kernel ---------------------------------------------------------------------------------

// RESIDENT blocks to a multiprocessor: so many threads that enough bytes are on their way, and each
// with as many registers as that leaves.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, RESIDENT)
softmax_any_row(const T* __restrict__ x, T* __restrict__ y, int rows, int cols,
                long long x_stride, long long y_stride)
{
    __shared__ alignas(8) float2 letters[senders];         // a pair of every warp of the row
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    // A block may write to another only when that one has started: see 08_cluster.cu.
    if (CLUSTER > 1 && threadIdx.x == 0) {
        mbarrier_init(&all_arrived);
        mbarrier_expect(&all_arrived, 8 * senders);
        fence_mbarrier_init();
    }
    if (CLUSTER > 1) cluster_arrive_relaxed();

    // ---- load -----------------------------------------------------------------------------------
    // A head of columns up to the first boundary of 16 bytes, a body of whole packs, a tail. Head
    // and tail go to the first block, a column a thread. The packs go round all threads of the
    // cluster, as in 08_cluster.cu; but where the body of y starts `late` columns past a boundary,
    // those of a warp follow each other: then a pack of y lies in two neighbouring lanes.
    const long long row = blockIdx.x / CLUSTER;
    const T* from = x + row * x_stride;
    T* to = y + row * y_stride;
    const int head = (16 - (unsigned long long)from % 16) % 16 / sizeof(T);
    const int packs = (cols - head) / width;
    const int ends = cols - packs * width;  // columns of head and tail
    const int end = threadIdx.x + (threadIdx.x < head ? 0 : packs * width);
    const bool has_end = rank == 0 && threadIdx.x < ends;
    const int late = LATE ? (unsigned long long)(to + head) % 16 / sizeof(T) : 0;  // columns
    const int block = rank * THREADS * (late ? PACKS : 1);  // its first pack
    const int start = block + (late ? warp * 32 * PACKS + lane : threadIdx.x);
    const int step = late ? 32 : CLUSTER * THREADS;
    const float minus_inf = __int_as_float(0xff800000);  // adds nothing: 2^-inf = 0
    Pack v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = start + k * step;
        if (pack < packs) {
            v[k].bits = load(reinterpret_cast<const uint4*>(from + head) + pack);
        } else {
#pragma unroll
            for (int c = 0; c < twos; ++c)
                v[k].columns[c] = to_T2(make_float2(minus_inf, minus_inf));
        }
    }
    float v_end = has_end ? to_float(from[end]) : minus_inf;

    // ---- reduce ---------------------------------------------------------------------------------
    const float log2e = 1.44269504f;
    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu
    T2 largest = v[0].columns[0];
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int c = 0; c < twos; ++c) largest = max2(largest, v[k].columns[c]);
    const float2 both = to_float2(largest);
    const float thread_max = fmaxf(fmaxf(lowest, v_end), fmaxf(both.x, both.y));

    // As in 08_cluster.cu: shift = max * log2(e), unless the columns are very large.
    const bool far = fabsf(thread_max) >= 536870912.0f;
    const float shift = far ? thread_max + copysignf(268435456.0f, thread_max)
                            : __fmul_rn(thread_max, log2e);
    const float slope = far ? 1.0f : log2e, origin = far ? thread_max : shift;
    v_end = fast_exp2(fmaf(v_end, slope, -origin));
    float sum = v_end;
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
    // Lane r sends the warp's pair to block r: see 08_cluster.cu.
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
        // See 08_cluster.cu: in 16 bits a second exponential needs fewer registers.
        uint4& bits = v[k].bits;
        if (!keep) asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
#pragma unroll
        for (int c = 0; c < twos; ++c) {
            const T2 columns = v[k].columns[c];
            const float2 e = keep ? to_float2(columns) : exponentials(columns, slope, origin);
            v[k].columns[c] = to_T2(make_float2(e.x * scale, e.y * scale));
        }
        const int pack = start + k * step;
        if (late == 0 && pack < packs) reinterpret_cast<uint4*>(to + head)[pack] = bits;
    }
    if (late > 0) {
        __shared__ uint4 lasts[warps];  // the last pack of each warp, for the first of the next
        if (lane == 31) lasts[warp] = v[PACKS - 1].bits;
        __syncthreads();
        uint4 kept = lasts[max(warp - 1, 0)];
        const int behind = min(packs, block + THREADS * PACKS);  // the pack behind the block's
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int pack = start + k * step;
            store_late(to + head + pack * width, late, v[k], pack < packs,
                       pack == block && pack < packs, pack == behind - 1, kept);
        }
    }
    if (has_end) to[end] = to_T(v_end * scale);
}

// SPDX-License-Identifier: MIT
// Idea:     the way back: dx = y * (dy - sum(y * dy)). y and dy stay in registers while the blocks
//           of a cluster exchange one sum; what was not kept of the way there is computed anew from
//           x, with three sums that are merged as the pairs of 02_online.cu are.
// Computes: softmax_backward
// Row:      CLUSTER blocks, 1 to 16
// Build:    LOG          = 0
//           FROM_X       = 0
//           DROPOUT      = 0
//           packs        = row / 16
//           CLUSTER      = 1 when capability < 90 || packs <= 1024
//                        | 2 when packs <= 2048
//                        | 4 when packs <= 4096
//                        | 8 when packs <= 8192
//                        | 16
//           share        = ceil_div(packs, CLUSTER)
//           ROWS         = 4 when packs <= 128
//                        | 1
//           middling     = 2 * rows * row > l2 && 5 * rows * row <= 4 * l2
//           THREADS      = 32 when packs <= 128
//                        | 64 when share <= 192
//                        | 128 when share <= 320 || share <= 512 && middling
//                        | 192 when share <= 384
//                        | 256 when share <= 1024
//                        | 512
//           PACKS        = ceil_div(share, THREADS)
//           sm_threads   = 1024 when PACKS <= 4
//                        | 768 when THREADS <= 256
//                        | 512
//           RESIDENT     = sm_threads / (THREADS * ROWS)
//           EVICT_LAST   = 1 when 5 * rows * row > 4 * l2 && capability >= 80
//                        | 0
// Launch:   block = THREADS * ROWS, block == THREADS * ROWS, grid = ceil_div(rows, ROWS) * CLUSTER
// Shared:   0
// Columns:  row % 16 == 0 && packs <= CLUSTER * THREADS * PACKS && PACKS <= 2 * size
//           && (ROWS == 1 || CLUSTER == 1 && THREADS == 32)
// Features: DROPOUT == 0 || LOG == 0
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    2 reads + 1 write
// Wastes:   y and dy are two rows to hold: the blocks of a row do half of what they do in 08.
// Measured: 4399 GB/s, 1.00 of 00_two_reads at 65536 x 4096 (H200, 2026-11-22)
//
// For row-major y, dy and dx of shape (rows, cols), with y = softmax(scale * x) and dy the gradient
// of a loss by y, dx is that by x:
//
//     dx = scale * y * (dy - sum(y * dy))
//     dx = scale * (dy - exp(y) * sum(dy))   LOG=1: y = log(softmax(scale * x))
//
// FROM_X=1: y was not kept. In its place stands what softmax was of, scale * x with -inf where it
// was masked, and softmax is computed again. DROPOUT=1: dy is that by what dropout left of y, in
// 12_fused.cu; what it dropped is drawn again from p, seed and offset (`Dropout`), which a CUDA
// graph holds as they were captured. With p = 1 dx is 0. y must be softmax before dropout, which
// 12_fused.cu does not write. Where a column was masked y is 0, and so is dx; with LOG dx is
// scale * dy there, and the caller must set it to 0. Columns that a causal mask hid are loaded like
// the others. scale is 1 where x was not scaled. A row must be whole packs of 16 bytes; dx must
// overlap neither y nor dy. A row whose softmax is NaN has NaN, as in PyTorch. Clusters need sm_90;
// one of 16 must be allowed once: see cudaFuncSetAttribute and
// cudaFuncAttributeNonPortableClusterSizeAllowed. Measured with -ftz=true, as CuPy compiles.

#if !defined(LOG) || !defined(FROM_X) || !defined(DROPOUT) || !defined(CLUSTER) \
    || !defined(ROWS) || !defined(THREADS) || !defined(PACKS) || !defined(RESIDENT) \
    || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DLOG=0 -DFROM_X=0 -DDROPOUT=0 -DCLUSTER=4 \
-DROWS=1 -DTHREADS=256 -DPACKS=4 -DRESIDENT=4 -DEVICT_LAST=1"
#endif

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
static_assert(THREADS >= 32 && THREADS <= 1024 && THREADS % 32 == 0, "a row has whole warps");
static_assert(ROWS == 1 || CLUSTER == 1 && THREADS == 32, "rows of a block are a warp each");
static_assert(PACKS >= 1 && PACKS * 16 <= 32 * sizeof(T), "packs of a thread: 32 columns at most");
static_assert(RESIDENT >= 1, "blocks of a multiprocessor");
static_assert(EVICT_LAST == 0 || EVICT_LAST == 1, "EVICT_LAST is yes, 1, or no, 0");
static_assert(LOG == 0 || LOG == 1, "LOG is yes, 1, or no, 0");
static_assert(FROM_X == 0 || FROM_X == 1, "FROM_X is yes, 1, or no, 0");
static_assert(DROPOUT == 0 || DROPOUT == 1 && LOG == 0, "dropout is for probabilities");

constexpr int twos = 16 / sizeof(T2);     // T2s of 16 bytes
constexpr int width = 16 / sizeof(T);     // columns of 16 bytes
constexpr bool keep = sizeof(T) == 4;     // the exponentials, in the registers of their columns
constexpr int warps = THREADS / 32;       // of a row in a block
constexpr int senders = warps * CLUSTER;  // warps that work on a row

// ---- 16 bytes -----------------------------------------------------------------------------------

// 16 bytes: one access.
union Pack {
    uint4 bits;
    T2 columns[twos];
    __device__ Pack() {}
};

// What asks the L2 to evict last what comes with it.
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

// Leaves bits as they are. But the compiler, which does not know that zero is 0, must take them for
// others. Else it keeps the floats that it made of 16-bit columns before, in twice the registers.
__device__ __forceinline__ void forget(uint4& bits, unsigned zero)
{
    bits = make_uint4(bits.x ^ zero, bits.y ^ zero, bits.z ^ zero, bits.w ^ zero);
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
// The scheme of this exchange is QuACK's: https://github.com/Dao-AILab/quack.

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

// Writes a letter of 16 bytes to its place in another block, whose mbarrier counts them: data and
// arrival are one message.
__device__ __forceinline__ void send_four(float4 letter, const float4* own,
                                          unsigned long long* mbarrier, int rank)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
        ::"r"(place_in(own, rank)), "f"(letter.x), "f"(letter.y), "f"(letter.z), "f"(letter.w),
          "r"(place_in(mbarrier, rank))
        : "memory");
}

// ---- dropout ------------------------------------------------------------------------------------

// 128 random bits from each of `count` counters and one key: Philox 4x32 (Salmon and others,
// Parallel random numbers: as easy as 1, 2, 3, SC 2011), of seven rounds, the fewest that pass
// BigCrush there. Round by round, so that each key is made once.
template <int count>
__device__ __forceinline__ void philox(uint4* counters, uint2 key)
{
#pragma unroll
    for (int round = 0; round < 7; ++round) {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const uint4 from = counters[i];
            const unsigned long long a = 0xD2511F53ull * from.x, b = 0xCD9E8D57ull * from.z;
            counters[i] = make_uint4((unsigned)(b >> 32) ^ from.y ^ key.x, (unsigned)b,
                                     (unsigned)(a >> 32) ^ from.w ^ key.y, (unsigned)a);
        }
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
}

// Which columns of a row stay. The key is the seed, the counter {column / 8, row, offset}; what
// they give is eight numbers of 16 bits. Column c takes number c % 8, and is dropped if that is
// below p * 65536, rounded down.
struct Dropout {
    float p;
    unsigned row;
    unsigned long long seed, offset;

    // The numbers of the packs first, first + step, ...: two in a word, the lower half first.
    template <int width, int packs>
    __device__ __forceinline__ void draw(int first, int step, uint4 (&drawn)[packs]) const
    {
#pragma unroll
        for (int k = 0; k < packs; ++k)
            drawn[k] = make_uint4((unsigned)(first + k * step) * width / 8, row, (unsigned)offset,
                                  offset >> 32);
        philox<packs>(drawn, make_uint2((unsigned)seed, seed >> 32));
#pragma unroll
        for (int k = 0; k < packs; ++k)  // two packs of four columns have a counter
            if (width == 4 && (first + k * step) % 2)
                drawn[k].x = drawn[k].z, drawn[k].y = drawn[k].w;
    }

    // Whether column c of a pack stays. The lower half of an odd column's word decides nothing.
    __device__ __forceinline__ bool stays(const uint4& drawn, int c) const
    {
        const unsigned word = reinterpret_cast<const unsigned*>(&drawn)[c / 2];
        return (c % 2 ? word : word << 16) >= (unsigned)(p * 65536.0f) << 16;
    }

    // By what a column that stays is multiplied: 1 / (1 - p) for p as it was rounded, so that the
    // mean is what it was; 0 for p = 1, whose bound wraps to 0, so that all would stay.
    __device__ __forceinline__ float factor() const
    {
        const float left = 1.0f - floorf(p * 65536.0f) / 65536.0f;
        return left > 0.0f ? 1.0f / left : 0.0f;
    }
};

// ---- the kernel ---------------------------------------------------------------------------------

// RESIDENT blocks to a multiprocessor: so many threads that enough bytes are on their way, and each
// thread with as many registers as that leaves.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS * ROWS, RESIDENT)
softmax_backward(const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, int rows,
                 int cols, float scale, float p, unsigned long long seed,
                 unsigned long long offset)
{
    __shared__ alignas(16) float4 letters[senders];        // what every warp of the row found
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int thread = threadIdx.x % THREADS;
    const int warp = thread / 32;
    const int lane = threadIdx.x % 32;
    const int row = blockIdx.x / CLUSTER * ROWS + threadIdx.x / THREADS;
    if (row >= rows) return;  // only if a row is one warp (ROWS > 1), and meets at no barrier

    // A block may write to another only when that one has started: see 08_cluster.cu.
    if (CLUSTER > 1 && threadIdx.x == 0) {
        mbarrier_init(&all_arrived);
        mbarrier_expect(&all_arrived, 16 * senders);
        fence_mbarrier_init();
    }
    if (CLUSTER > 1) cluster_arrive_relaxed();

    // ---- load -----------------------------------------------------------------------------------
    // The packs of a row are dealt to the threads of its cluster in turn. A thread has the same
    // packs of y and of dy, v[k] and d[k].
    const long long start = (long long)row * cols;
    const uint4* from = reinterpret_cast<const uint4*>(y + start);
    const uint4* from_d = reinterpret_cast<const uint4*>(dy + start);
    uint4* to = reinterpret_cast<uint4*>(dx + start);
    const int packs = cols / (2 * twos);
    float nothing = 0.0f;  // past the end of a row
    if (FROM_X) nothing = __int_as_float(0xff800000);  // 2^-inf = 0
    Pack v[PACKS], d[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * CLUSTER + rank) * THREADS + thread;
        if (pack < packs) {
            v[k].bits = load(from + pack);
            d[k].bits = load(from_d + pack);
        } else {
#pragma unroll
            for (int c = 0; c < twos; ++c) v[k].columns[c] = to_T2(make_float2(nothing, nothing));
            d[k].bits = make_uint4(0, 0, 0, 0);
        }
    }

    const Dropout dropout = {p, (unsigned)row, seed, offset};
    uint4 drawn[PACKS];  // for DROPOUT
    if (DROPOUT) dropout.draw<width>(rank * THREADS + thread, CLUSTER * THREADS, drawn);

    // ---- reduce ---------------------------------------------------------------------------------
    const float log2e = 1.44269504f;
    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu
    float shift = 0.0f, slope = log2e, origin = 0.0f;  // for FROM_X
    // The shift of 08_cluster.cu, with which x becomes exponentials.
    if (FROM_X) {
        T2 largest = v[0].columns[0];
#pragma unroll
        for (int k = 0; k < PACKS; ++k)
#pragma unroll
            for (int c = 0; c < twos; ++c) largest = max2(largest, v[k].columns[c]);
        const float2 both = to_float2(largest);
        const float thread_max = fmaxf(lowest, fmaxf(both.x, both.y));
        const bool far = fabsf(thread_max) >= 536870912.0f;
        shift = far ? thread_max + copysignf(268435456.0f, thread_max)
                    : __fmul_rn(thread_max, log2e);
        slope = far ? 1.0f : log2e;
        origin = far ? thread_max : shift;
    }
    float sum = 0.0f, dot = 0.0f;  // sum: for FROM_X; dot: of y * dy, of dy for LOG
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int c = 0; c < twos; ++c) {
            if (DROPOUT && !dropout.stays(drawn[k], 2 * c)) d[k].columns[c].x = T(0.0f);
            if (DROPOUT && !dropout.stays(drawn[k], 2 * c + 1)) d[k].columns[c].y = T(0.0f);
            const float2 g = to_float2(d[k].columns[c]);
            float2 e = to_float2(v[k].columns[c]);
            if (FROM_X) e = exponentials(v[k].columns[c], slope, origin);
            sum += e.x + e.y;
            dot += LOG ? g.x + g.y : e.x * g.x + e.y * g.y;
            if (FROM_X && keep) v[k].columns[c] = to_T2(e);
        }
    float warp_shift = 0.0f;  // for FROM_X
    if (FROM_X) {
        warp_shift = warp_max(shift);
        const float weight = fast_exp2(shift - warp_shift);
        sum = warp_sum(sum * weight);
        if (!LOG) dot *= weight;
    }
    dot = warp_sum(dot);

    // ---- exchange -------------------------------------------------------------------------------
    // Lane r sends the warp's letter to block r: see 08_cluster.cu. A row of one warp sends none.
    float row_shift = warp_shift;
    if (senders > 1) {
        const float4 letter = make_float4(warp_shift, sum, dot, 0.0f);
        if (CLUSTER == 1) {
            if (lane == 0) letters[warp] = letter;
            __syncthreads();
        } else {
            cluster_wait();
            if (lane < CLUSTER)
                send_four(letter, &letters[rank * warps + warp], &all_arrived, lane);
            mbarrier_wait(&all_arrived);
        }
        if (FROM_X) {
            row_shift = lowest;
#pragma unroll
            for (int i = lane; i < senders; i += 32) row_shift = fmaxf(row_shift, letters[i].x);
            row_shift = warp_max(row_shift);
        }
        sum = dot = 0.0f;
#pragma unroll
        for (int i = lane; i < senders; i += 32) {
            const float4 other = letters[i];
            float weight = 1.0f;
            if (FROM_X) weight = fast_exp2(other.x - row_shift);
            if (FROM_X) sum += other.y * weight;
            dot += LOG ? other.z : other.z * weight;
        }
        if (FROM_X) sum = warp_sum(sum);
        dot = warp_sum(dot);
    }
    float part = 1.0f, factor = scale;  // v * part is softmax
    if (FROM_X) part = fast_exp2(shift - row_shift) / sum;
    if (FROM_X && !LOG) dot /= sum;
    if (DROPOUT) factor = scale * dropout.factor();

    // ---- write ----------------------------------------------------------------------------------
    const unsigned zero = rows < 0;  // 0, but the compiler cannot know: for 16 bits
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * CLUSTER + rank) * THREADS + thread;
        if (!keep) forget(v[k].bits, zero), forget(d[k].bits, zero);  // keep no floats
#pragma unroll
        for (int c = 0; c < twos; ++c) {
            const T2 columns = v[k].columns[c];
            const float2 g = to_float2(d[k].columns[c]);
            float2 s = to_float2(columns);
            if (LOG && !FROM_X || FROM_X && !keep) s = exponentials(columns, slope, origin);
            if (FROM_X) s = make_float2(s.x * part, s.y * part);
            float2 q = make_float2(s.x * (g.x - dot), s.y * (g.y - dot));
            if (LOG) q = make_float2(g.x - s.x * dot, g.y - s.y * dot);
            d[k].columns[c] = to_T2(make_float2(factor * q.x, factor * q.y));
        }
        if (pack < packs) to[pack] = d[k].bits;
    }
}

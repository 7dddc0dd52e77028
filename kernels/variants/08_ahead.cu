// SPDX-License-Identifier: MIT
// Idea:     08_cluster.cu for rows that fill its blocks: they stay and take row after row, and
//           while they write one row, the next takes its place and is reduced on the way.
// Row:      CLUSTER blocks
// Build:    CLUSTER       = 2 when row <= 131072
//                         | 4 when row <= 262144
//                         | 8 when row <= 524288
//                         | 16
//           THREADS       = 256 when row <= 1048576
//                         | 512 when row <= 2097152
//                         | 384
//           RESIDENT      = 512 / THREADS
//           PACKS         = ceil_div(row / 16, CLUSTER * THREADS)
//           DIRECT        = 18 when PACKS > 20
//                         | PACKS - min(PACKS, 4)
//           STREAM        = PACKS - DIRECT
//           SLOTS         = min(34, 2 * STREAM)
//           clustered_sms = sms * 10 / 11
//           clusters      = RESIDENT * (clustered_sms / CLUSTER)
//           EVICT_LAST    = 1
//           STREAMING     = 1
// Launch:   block = THREADS, block == THREADS, grid = min(rows, clusters) * CLUSTER
// Shared:   16 * THREADS * SLOTS
// Columns:  row % 16 == 0 && PACKS > 4 && PACKS <= 44
//           && row <= 16 * CLUSTER * THREADS * PACKS
//           && row > 16 * CLUSTER * THREADS * (PACKS - 1)
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_90
// Reads:    1 read + 1 write
// Wastes:   every exponential is computed twice, because nothing has room to keep it; blocks that
//           stay copy slower than blocks that come and go (00_copy_persistent.cu).
// Measured: 3945 GB/s, 0.92 of a copy at 256 x 1048576 (H200, 2026-11-22)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. A cluster of 16 and more
// than 48 KB of shared memory must be allowed once: see cudaFuncSetAttribute. Of an H200's 132
// multiprocessors clusters of 8 find 120 together, and clusters of 16 find 112 of these
// (cuOccupancyMaxActiveClusters): so all of `clusters` run at once. Any other number up to `rows`
// is right, perhaps slower. Blocks exchange pairs as in 08_cluster.cu, as QuACK does
// (https://github.com/Dao-AILab/quack). Measured with -ftz=true, as CuPy compiles.

#if !defined(CLUSTER) || !defined(THREADS) || !defined(RESIDENT) || !defined(PACKS) \
    || !defined(DIRECT) || !defined(STREAM) || !defined(SLOTS) || !defined(EVICT_LAST) \
    || !defined(STREAMING)
#error "compile with all macros of the Build table: -DCLUSTER=16 -DTHREADS=384 -DRESIDENT=1 \
-DPACKS=43 -DDIRECT=18 -DSTREAM=25 -DSLOTS=34 -DEVICT_LAST=1 -DSTREAMING=1"
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

static_assert(CLUSTER >= 1 && CLUSTER <= 16, "there are clusters of up to 16 blocks");
static_assert(THREADS >= 32 && THREADS <= 1024 && THREADS % 32 == 0, "a block is whole warps");
static_assert(RESIDENT >= 1, "blocks of a multiprocessor");
static_assert(STREAM >= 1 && DIRECT >= 1 && STREAM + DIRECT == PACKS, "packs of a thread");
static_assert(SLOTS > STREAM && SLOTS <= 2 * STREAM, "the ring holds a row's packs and some more");
static_assert(EVICT_LAST == 0 || EVICT_LAST == 1, "EVICT_LAST is yes, 1, or no, 0");
static_assert(STREAMING == 0 || STREAMING == 1, "STREAMING is yes, 1, or no, 0");

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

// Stores 16 bytes: the caches let them go first if STREAMING, else as usual.
__device__ __forceinline__ void store(uint4* to, uint4 bits)
{
    if (STREAMING)
        __stcs(to, bits);
    else
        *to = bits;
}

// 2 to the power of value, but 0 where that is below 2^-126: one instruction with any options.
__device__ __forceinline__ float fast_exp2(float value)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

// e to the power of value, likewise: two instructions with any options.
__device__ __forceinline__ float fast_exp(float value)
{
    return fast_exp2(value * 1.44269504f);
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

// Waits until the phase of this parity, 0 for the first, has ended: then its bytes can be read.
__device__ __forceinline__ void mbarrier_wait(unsigned long long* mbarrier, int parity)
{
    for (unsigned ended = 0; !ended;)
        asm volatile(
            "{ .reg .pred p;"
            " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
            " selp.u32 %0, 1, 0, p; }"
            : "=r"(ended) : "r"(place(mbarrier)), "r"(parity) : "memory");
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

// What this thread has read in its block's shared memory, it has read before its next arrival at
// the cluster's barrier. An arrival that releases would wait for all stores to y as well. The fence
// came with PTX 8.6, CUDA 12.7.
__device__ __forceinline__ void fence_release_shared()
{
    asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
}

// ---- loads and copies ---------------------------------------------------------------------------

// What asks the L2 to evict last what comes with it.
__device__ __forceinline__ unsigned long long evict_last_policy()
{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Loads 16 bytes that are read once, with the hint of 08_cluster.cu, of whatever size x is.
__device__ __forceinline__ uint4 load(const uint4* from)
{
#if EVICT_LAST
    uint4 bits;
    asm volatile("ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(from), "l"(evict_last_policy()));
    return bits;
#else
    return STREAMING ? __ldcs(from) : *from;
#endif
}

// Starts the copy of a pack to a place in shared memory, with the same hint.
__device__ __forceinline__ void copy_async(unsigned to, const uint4* from)
{
#if EVICT_LAST
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::
                     "r"(to), "l"(from), "l"(evict_last_policy()) : "memory");
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}

// Makes a group of the copies that this thread has started since the last group.
__device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups but the last few.
template <int few>
__device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(few) : "memory");
}

// ---- a thread's packs ---------------------------------------------------------------------------

// Takes packs into a thread's maximum and sum: the online rule of 02_online.cu, `count` packs at a
// time.
__device__ __forceinline__ void take(const Pack* packs, int count, float& thread_max, float& sum)
{
    T2 largest = packs[0].columns[0];
#pragma unroll
    for (int k = 0; k < count; ++k)
#pragma unroll
        for (int c = 0; c < twos; ++c) largest = max2(largest, packs[k].columns[c]);
    const float2 both = to_float2(largest);
    const float before = thread_max;
    thread_max = fmaxf(thread_max, fmaxf(both.x, both.y));
    sum *= fast_exp(before - thread_max);
#pragma unroll
    for (int k = 0; k < count; ++k)
#pragma unroll
        for (int c = 0; c < twos; ++c) {
            const float2 v = to_float2(packs[k].columns[c]);
            sum += fast_exp(v.x - thread_max) + fast_exp(v.y - thread_max);
        }
}

// The results of a pack.
__device__ __forceinline__ uint4 softmax(const Pack& pack, float row_max, float scale)
{
    Pack result;
#pragma unroll
    for (int c = 0; c < twos; ++c) {
        const float2 v = to_float2(pack.columns[c]);
        result.columns[c] = to_T2(
            make_float2(fast_exp(v.x - row_max) * scale, fast_exp(v.y - row_max) * scale));
    }
    return result.bits;
}

// ---- the kernel ---------------------------------------------------------------------------------

// Of a thread's packs of a row, the first STREAM go through its slots of the ring, as a queue: a
// slot is filled again as soon as its pack has been written, SLOTS packs ahead. The others go
// straight into the registers whose pack has been written. So a thread waits for nobody's copies
// but its own, and what it needs last is on its way first.
extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, RESIDENT)
softmax_ahead(const T* __restrict__ x, T* __restrict__ y, int rows, int cols)
{
    extern __shared__ uint4 ring[];
    __shared__ alignas(8) float2 letters[senders];         // (max, sum) of every warp of the row
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int clusters = gridDim.x / CLUSTER;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu
    const float minus_inf = __int_as_float(0xff800000);

    if (threadIdx.x == 0) {
        mbarrier_init(&all_arrived);
        mbarrier_expect(&all_arrived, 8 * senders);
        fence_mbarrier_init();
    }
    cluster_arrive_relaxed();

    // The turn before the first: there is nothing to write, and the queue fills.
    const int packs = cols / (2 * twos);
    const long long stride = (long long)clusters * packs;  // to the cluster's next row
    const int member = rank * THREADS + threadIdx.x;
    const bool has_last = member + (PACKS - 1) * step < packs;
    const int first_row = blockIdx.x / CLUSTER;
    long long here = (long long)(first_row - clusters) * packs + member;
    const uint4* from = reinterpret_cast<const uint4*>(x);
    uint4* to = reinterpret_cast<uint4*>(y);
    uint4* own = ring + threadIdx.x;
    for (int k = 0; k < SLOTS - STREAM; ++k) {
        if (first_row < rows)
            copy_async(place(own + (STREAM + k) * THREADS), from + here + stride + k * step);
        copy_async_commit();
    }
    Pack direct[DIRECT];
#pragma unroll
    for (int k = 0; k < DIRECT; ++k)
#pragma unroll
        for (int c = 0; c < twos; ++c)
            direct[k].columns[c] = to_T2(make_float2(minus_inf, minus_inf));

    float thread_max, sum, row_max, scale;
    int slot = 0, parity = 0;
    for (int row = first_row - clusters; row < rows; row += clusters, here += stride) {
        const bool writes = row >= 0;
        const bool more = row + clusters < rows;

        // ---- exchange: the row that is here -----------------------------------------------------
        if (writes) {
            // As in 08_cluster.cu: a warp sends its pair to all blocks, and waits for all pairs.
            // Nobody sends before all blocks have started, or have read the letters of the row
            // before: they have arrived.
            const float warp_largest = warp_max(thread_max);
            sum = warp_sum(sum * fast_exp(thread_max - warp_largest));
            cluster_wait();
            const float2 letter = make_float2(warp_largest, sum);
            if (lane < CLUSTER) send(letter, &letters[rank * warps + warp], &all_arrived, lane);
            mbarrier_wait(&all_arrived, parity);
            parity ^= 1;
            if (threadIdx.x == 0) mbarrier_expect(&all_arrived, 8 * senders);  // of the next row

            row_max = lowest;
#pragma unroll
            for (int i = lane; i < senders; i += 32) row_max = fmaxf(row_max, letters[i].x);
            row_max = warp_max(row_max);
            float row_sum = 0.0f;
#pragma unroll
            for (int i = lane; i < senders; i += 32)
                row_sum += letters[i].y * fast_exp(letters[i].x - row_max);
            scale = 1.0f / warp_sum(row_sum);
            if (more) {
                fence_release_shared();
                cluster_arrive_relaxed();
            }
        }

        // ---- write this row, load and reduce the next in its place ------------------------------
#pragma unroll
        for (int k = 0; k < DIRECT; ++k) {
            const long long pack = here + (STREAM + k) * step;
            if (k < DIRECT - 1 || has_last) {
                if (writes) store(to + pack, softmax(direct[k], row_max, scale));
                if (more) direct[k].bits = load(from + pack + stride);
            }
        }

        thread_max = lowest;
        sum = 0.0f;
#pragma unroll 4
        for (int k = 0; k < STREAM; ++k) {
            copy_async_wait<SLOTS - STREAM - 1>();
            const int next = slot + STREAM < SLOTS ? slot + STREAM : slot + STREAM - SLOTS;
            Pack coming;
            if (more) coming.bits = own[next * THREADS];
            if (writes) {
                Pack done;
                done.bits = own[slot * THREADS];
                store(to + here + k * step, softmax(done, row_max, scale));
            }
            const int on = (k + SLOTS) / STREAM;  // rows from here to the pack SLOTS further on
            if (row + on * clusters < rows)
                copy_async(place(own + slot * THREADS),
                           from + here + on * stride + (k + SLOTS) % STREAM * step);
            copy_async_commit();
            if (more) take(&coming, 1, thread_max, sum);
            slot = slot + 1 < SLOTS ? slot + 1 : 0;
        }
        if (more) take(direct, DIRECT, thread_max, sum);
    }
}

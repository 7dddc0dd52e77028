// SPDX-License-Identifier: MIT
// Idea:     08_cluster.cu with persistent blocks, for rows that fill them: while a block writes one
//           row, it loads and reduces the next into the same registers and shared memory.
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
// Wastes:   every exponential is computed twice, because there is no room to keep it; persistent
//           blocks copy more slowly than others (00_copy_persistent.cu).
// Measured: 3945 GB/s, 0.92 of a copy at 256 x 1048576 (H200, 2026-11-22)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. A cluster of 16 and more
// than 48 KB of shared memory must be allowed once: see cudaFuncSetAttribute. Of an H200's 132
// multiprocessors clusters of 8 find 120 together, and clusters of 16 find 112 of these
// (cuOccupancyMaxActiveClusters): so all `clusters` are co-resident. Any other number up to `rows`
// is correct but may be slower. Measured with -ftz=true, as CuPy compiles.

#if !defined(CLUSTER) || !defined(THREADS) || !defined(RESIDENT) || !defined(PACKS) \
    || !defined(DIRECT) || !defined(STREAM) || !defined(SLOTS) || !defined(EVICT_LAST) \
    || !defined(STREAMING)
#error "compile with all macros of the Build table: -DCLUSTER=16 -DTHREADS=384 -DRESIDENT=1 \
-DPACKS=43 -DDIRECT=18 -DSTREAM=25 -DSLOTS=34 -DEVICT_LAST=1 -DSTREAMING=1"
#endif

#include "include/cache_hints.cuh"
#include "include/cluster.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"

static_assert(STREAM >= 1 && DIRECT >= 1 && STREAM + DIRECT == PACKS, "STREAM + DIRECT == PACKS");
static_assert(SLOTS > STREAM && SLOTS <= 2 * STREAM, "the ring holds a row's packs and some more");

constexpr int step = CLUSTER * THREADS;   // from one pack of a thread to its next

// Waits until the phase of this parity, 0 for the first, has ended: then its bytes can be read.
__device__ __forceinline__ void mbarrier_wait(unsigned long long* mbarrier, int parity)
{
    for (unsigned ended = 0; !ended;)
        asm volatile(
            "{ .reg .pred p;"
            " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
            " selp.u32 %0, 1, 0, p; }"
            : "=r"(ended) : "r"(shared_address(mbarrier)), "r"(parity) : "memory");
}

// Orders this thread's reads of its block's shared memory before its next arrival at the cluster's
// barrier. A releasing arrival would wait for all stores to y as well. The fence requires PTX 8.6,
// CUDA 12.7.
__device__ __forceinline__ void fence_release_shared()
{
    asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
}

// ---- loads and copies ---------------------------------------------------------------------------

// Loads 16 bytes that are read once.
__device__ __forceinline__ uint4 load(const uint4* from)
{
    if (EVICT_LAST) return load_evict_last(from, evict_last_policy());
    return STREAMING ? __ldcs(from) : *from;
}

// Starts the copy of a pack to shared memory, with the same hint.
__device__ __forceinline__ void copy_async(unsigned to, const uint4* from)
{
#if EVICT_LAST
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::
                     "r"(to), "l"(from), "l"(evict_last_policy()) : "memory");
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}

// Commits the copies that this thread has started since the last group as a group.
__device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups but the last few.
template <int pending>
__device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// ---- a thread's packs ---------------------------------------------------------------------------

// Adds packs to a thread's maximum and sum by the recurrence of 02_online.cu.
template <int count>
__device__ __forceinline__ void take(Pack (&packs)[count], float& thread_max, float& sum)
{
    const float before = thread_max;
    thread_max = fmaxf(thread_max, max_of(packs));
    sum = sum_of<false>(packs, thread_max, sum * fast_exp(before - thread_max));
}

// The results of a pack.
__device__ __forceinline__ uint4 softmax(const Pack& pack, float row_max, float scale)
{
    Pack result;
#pragma unroll
    for (int c = 0; c < pairs_per_pack; ++c) {
        const float2 v = to_float2(pack.columns[c]);
        result.columns[c] = to_T2(
            make_float2(fast_exp(v.x - row_max) * scale, fast_exp(v.y - row_max) * scale));
    }
    return result.bits;
}

// ---- the kernel ---------------------------------------------------------------------------------

// The first STREAM packs of a thread's row go through its slots of the ring, a queue: a slot is
// refilled as soon as its pack has been written, SLOTS packs ahead. The other packs are loaded into
// the registers whose packs have been written. So a thread waits only for its own copies, and the
// packs that it needs last are in flight first.
extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, RESIDENT)
softmax_ahead(const T* __restrict__ x, T* __restrict__ y, int rows, int cols)
{
    extern __shared__ uint4 ring[];
    __shared__ alignas(8) float2 messages[senders];         // (max, sum) of every warp of the row
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int clusters = gridDim.x / CLUSTER;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    announce_block(&all_arrived, 8 * senders);

    // The iteration before the first row: there is nothing to write, and the queue fills.
    const int packs = cols / width;
    const long long stride = (long long)clusters * packs;  // to the cluster's next row
    const int member = rank * THREADS + threadIdx.x;
    const bool has_last = member + (PACKS - 1) * step < packs;
    const int first_row = blockIdx.x / CLUSTER;
    long long pack_index = (long long)(first_row - clusters) * packs + member;
    const uint4* from = reinterpret_cast<const uint4*>(x);
    uint4* to = reinterpret_cast<uint4*>(y);
    uint4* queue = ring + threadIdx.x;
    for (int k = 0; k < SLOTS - STREAM; ++k) {
        if (first_row < rows)
            copy_async(shared_address(queue + (STREAM + k) * THREADS),
                       from + pack_index + stride + k * step);
        copy_async_commit();
    }
    Pack direct[DIRECT];
#pragma unroll
    for (int k = 0; k < DIRECT; ++k) fill(direct[k], minus_inf());

    float thread_max, sum, row_max, scale;
    int slot = 0, parity = 0;
    for (int row = first_row - clusters; row < rows; row += clusters, pack_index += stride) {
        const bool writes = row >= 0;
        const bool more = row + clusters < rows;

        // ---- exchange: the row that has been loaded ---------------------------------------------
        if (writes) {
            // As in 08_cluster.cu, a warp sends its pair to all blocks and waits for all pairs. The
            // barrier ensures that all blocks have started and have read the last row's messages.
            const float2 message = warp_pair(thread_max, sum);
            cluster_wait();
            if (lane < CLUSTER) send(message, &messages[rank * warps + warp], &all_arrived, lane);
            mbarrier_wait(&all_arrived, parity);
            parity ^= 1;
            if (threadIdx.x == 0) mbarrier_expect(&all_arrived, 8 * senders);  // of the next row

            row_max = lowest;
#pragma unroll
            for (int i = lane; i < senders; i += 32) row_max = fmaxf(row_max, messages[i].x);
            row_max = warp_max(row_max);
            float row_sum = 0.0f;
#pragma unroll
            for (int i = lane; i < senders; i += 32)
                row_sum += messages[i].y * fast_exp(messages[i].x - row_max);
            scale = 1.0f / warp_sum(row_sum);
            if (more) {
                fence_release_shared();
                cluster_arrive_relaxed();
            }
        }

        // ---- write this row, load and reduce the next in its place ------------------------------
#pragma unroll
        for (int k = 0; k < DIRECT; ++k) {
            const long long pack = pack_index + (STREAM + k) * step;
            if (k < DIRECT - 1 || has_last) {
                if (writes) store<STREAMING>(to + pack, softmax(direct[k], row_max, scale));
                if (more) direct[k].bits = load(from + pack + stride);
            }
        }

        thread_max = lowest;
        sum = 0.0f;
#pragma unroll 4
        for (int k = 0; k < STREAM; ++k) {
            copy_async_wait<SLOTS - STREAM - 1>();
            const int next = slot + STREAM < SLOTS ? slot + STREAM : slot + STREAM - SLOTS;
            Pack coming[1];
            if (more) coming[0].bits = queue[next * THREADS];
            if (writes) {
                Pack done;
                done.bits = queue[slot * THREADS];
                store<STREAMING>(to + pack_index + k * step, softmax(done, row_max, scale));
            }
            const int rows_ahead = (k + SLOTS) / STREAM;  // rows up to the pack SLOTS further on
            if (row + rows_ahead * clusters < rows)
                copy_async(shared_address(queue + slot * THREADS),
                           from + pack_index + rows_ahead * stride + (k + SLOTS) % STREAM * step);
            copy_async_commit();
            if (more) take(coming, thread_max, sum);
            slot = slot + 1 < SLOTS ? slot + 1 : 0;
        }
        if (more) take(direct, thread_max, sum);
    }
}

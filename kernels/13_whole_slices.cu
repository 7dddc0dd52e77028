// SPDX-License-Identifier: MIT
// Idea:     slices follow each other without a gap. So a block, or a cluster for a long one, takes
//           whole slices, and a pack may begin in one line and end in the next. Where packs would
//           be narrow or scattered, a block's slices, its run, go through shared memory, 16 bytes
//           at a time, and are read there (STAGED).
// Computes: softmax_any_axis
// Row:      CLUSTER blocks, 1 to 16
// Build:    TILE       = inner
//           slice      = dim * inner * size
//           wide       = 16 / size when slice % 16 == 0 && inner <= 256
//                      | 8 / size when slice % 8 == 0
//                      | 4 / size when slice % 4 == 0
//                      | 1
//           across     = inner * size when inner % wide == 0
//                      | inner * size * wide
//           STAGED     = wide * size == 2 || dim < 2 * wide && inner % wide > 0
//                        || slice <= 2048 && across < 64 && slice % 16 > 0
//           WIDTH      = wide when STAGED == 0
//                      | 4 / size when inner % (4 / size) == 0
//                      | 1
//           bytes      = WIDTH * size
//           period     = inner / WIDTH when inner % WIDTH == 0
//                      | inner
//           each       = 32 when bytes == 16 && slice <= 256
//                      | 128 when bytes >= 8
//                      | 80
//           of_block   = 256 * each when STAGED == 1
//                      | 512 * each
//           CLUSTER    = 1 when capability < 90
//                      | min(16, power_of_two(ceil_div(slice, of_block)))
//           share      = ceil_div(dim * inner / WIDTH, CLUSTER)
//           MEMBERS    = period * ceil_div(share, period * (each / bytes))
//           PACKS      = ceil_div(share, MEMBERS)
//           tiles      = 1 when CLUSTER > 1
//                      | max(1, 128 / MEMBERS)
//           RUN        = tiles when STAGED == 0 || MEMBERS > period || CLUSTER > 1
//                      | tiles * max(1, 6144 / (tiles * slice))
//           THREADS    = 32 * ceil_div(tiles * MEMBERS, 32)
//           registers  = PACKS * max(bytes, 4) / 4 + 2 * WIDTH + 24
//           RESIDENT   = max(1, min(1024, 65536 / registers) / THREADS) when capability < 80
//                      | max(1, min(1536, 65536 / registers) / THREADS)
//           EVICT_LAST = 2 * outer * slice > l2 && bytes == 16 && capability >= 80
// Launch:   block = THREADS, block == THREADS, grid = ceil_div(outer, RUN) * CLUSTER
// Shared:   16 * STAGED * ceil_div(min(slice, MEMBERS * PACKS * bytes) * RUN + 14, 16)
// Columns:  TILE == inner && slice % (WIDTH * size) == 0 && MEMBERS * WIDTH % inner == 0
//           && dim * inner <= CLUSTER * MEMBERS * PACKS * WIDTH && THREADS <= 1024
//           && PACKS * max(bytes, 4) <= 256
//           && (STAGED == 0 || (CLUSTER - 1) * MEMBERS * PACKS * WIDTH < dim * inner
//               && (slice <= 49152 || capability >= 80))
//           && 64 + 8 * (tiles * MEMBERS * WIDTH * (5 + (inner == 8)) / 4
//                        + (tiles + CLUSTER + 1) * TILE) <= 49152
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   what is staged crosses shared memory twice, x on the way in and y on the way out.
// Measured: 3570 GB/s, 0.83 of a copy at 2048 x 8192 x 16 (H200, 2026-11-29)
//
// y[o, :, i] = softmax(x[o, :, i]) for x and y of shape (outer, dim, inner), row-major. y must not
// overlap x. Lines, slices, columns and clusters are those of 13_any_axis.cu; a tile is a slice. A
// column of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. Measured with -ftz=true,
// as CuPy compiles.
//
// Unless staged, a pack is as wide as the slice's bytes allow, up to 8 bytes if inner > 256.
// MEMBERS * WIDTH is a multiple of TILE, so that all packs of a thread are in the same columns,
// wherever lines end. STAGED is for slices with an odd number of 16-bit elements, for those of so
// few lines that packs would hold parts of many columns each, and for slices of up to 2 KB if the
// threads that load side by side would cover less than 64 bytes (`across`). A thread has up to
// `each` bytes. Where one thread has a whole column of a staged slice, a block takes about 6 KB of
// slices, `tiles` at a time, so that enough bytes are in flight. The limits were timed.

#if !defined(TILE) || !defined(STAGED) || !defined(WIDTH) || !defined(CLUSTER) \
    || !defined(MEMBERS) || !defined(PACKS) || !defined(RUN) || !defined(THREADS) \
    || !defined(RESIDENT) || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DTILE=3 -DSTAGED=1 -DWIDTH=1 -DCLUSTER=1 \
-DMEMBERS=6 -DPACKS=24 -DRUN=21 -DTHREADS=128 -DRESIDENT=8 -DEVICT_LAST=0"
#endif

#include "include/cache_hints.cuh"
#include "include/columns.cuh"

static_assert(tiles == 1 || CLUSTER == 1, "a cluster has one slice");
static_assert(PACKS >= 1 && RESIDENT >= 1, "packs of a thread, blocks of a multiprocessor");
static_assert(RUN == tiles || STAGED && column_threads == 1, "only threads alone take turns");
static_assert(EVICT_LAST == 0 || WIDTH * sizeof(T) == 16, "the hint goes with 16 bytes");

constexpr bool keep = sizeof(T) == 4 || WIDTH == 1;  // exponentials, in place of their elements
constexpr int width = 16 / sizeof(T);                // elements of a slot of 16 bytes
constexpr int stride = MEMBERS * WIDTH * (STAGED ? 1 : CLUSTER);  // up to a thread's next pack

__device__ __forceinline__ void load(Pack& pack, const T* from)
{
#if EVICT_LAST
    pack.bits = load_evict_last(reinterpret_cast<const uint4*>(from), evict_last_policy());
#else
    if (sizeof(pack.bits) == 2) pack.two[0] = to_T2(make_float2(0.0f, 0.0f));  // the unused half
    pack.bits = *reinterpret_cast<const decltype(pack.bits)*>(from);
#endif
}

// ---- runs of slices in shared memory ------------------------------------------------------------

// Fills slots of 16 bytes from an aligned address on, with `count` elements or a few more; `end` is
// how many follow the address in x.
__device__ __forceinline__ void fetch(uint4* slots, const T* from, int count, long long end)
{
    int packs = (count + width - 1) / width;
    if ((long long)packs * width > end) {  // the last elements of x, one by one
        const int element = --packs * width + threadIdx.x;
        if (element < count) reinterpret_cast<T*>(slots)[element] = from[element];
    }
#pragma unroll 4
    for (int pack = threadIdx.x; pack < packs; pack += THREADS) {
        const uint4* bits = reinterpret_cast<const uint4*>(from) + pack;
#if __CUDA_ARCH__ >= 800  // the copy does not pass through registers
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::
                         "r"(shared_address(slots + pack)), "l"(bits) : "memory");
#else
        slots[pack] = *bits;
#endif
    }
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    __syncthreads();
}

// Writes elements `begin` to before `end` of the slots: packs, and by element what shares a slot
// with elements of other blocks.
__device__ __forceinline__ void put_back(T* to, const uint4* slots, int begin, int end)
{
    __syncthreads();
    const int first = (begin + width - 1) / width, last = end / width;
#pragma unroll 4
    for (int pack = first + threadIdx.x; pack < last; pack += THREADS)
        reinterpret_cast<uint4*>(to)[pack] = slots[pack];
    const bool is_head = threadIdx.x < width;
    const int element = threadIdx.x + (is_head ? 0 : (max(first, last) - 1) * width);
    if (threadIdx.x < 2 * width && element >= begin && element < end && (!is_head || first > 0))
        to[element] = reinterpret_cast<const T*>(slots)[element];
}

// ---- the kernel ---------------------------------------------------------------------------------

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, RESIDENT)
softmax_whole_slices(const T* __restrict__ x, T* __restrict__ y, int outer, int dim, int inner)
{
    extern __shared__ uint4 slots[];
    __shared__ Shared shared;
    const int rank = blockIdx.x % CLUSTER;
    if (CLUSTER > 1) announce_block(&shared.all_arrived, 8 * CLUSTER * TILE);

    // ---- load -----------------------------------------------------------------------------------
    // A block has a run of slices. A cluster has one: its blocks take packs in turn, or each has a
    // contiguous part if it is STAGED.
    const int slice = blockIdx.x / CLUSTER * RUN, run = min(RUN, outer - slice);
    const int elements = dim * TILE, skipped = rank * MEMBERS * WIDTH * (STAGED ? PACKS : 1);
    const int part = max(0, min(elements - skipped, PACKS * stride));
    const long long start = (long long)slice * elements + skipped;
    const int before = STAGED ? start % width : 0;  // elements in the first slot
    const int stage_end = part > 0 ? before + (run - 1) * elements + part : 0;
    if (STAGED)
        fetch(slots, x + start - before, stage_end, (long long)outer * elements - start + before);
    const T* from = STAGED ? reinterpret_cast<const T*>(slots) + before : x + start;
    T* to = STAGED ? reinterpret_cast<T*>(slots) + before : y + start;

    // A slice has MEMBERS threads; tiles past the last are excess threads.
    const int tile = threadIdx.x / MEMBERS, member = threadIdx.x % MEMBERS;
#pragma unroll 1
    for (int turn = 0; turn < RUN; turn += tiles) {
        const int first = (turn + tile) * elements + member * WIDTH;
        const int end = tile < tiles && turn + tile < run ? part - member * WIDTH : 0;
        Pack v[PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            if (k * stride < end) {
                load(v[k], from + first + k * stride);
            } else {
#pragma unroll
                for (T2& two : v[k].two) two = to_T2(make_float2(minus_inf(), minus_inf()));
            }
        }

        // ---- reduce: see 13_any_axis.cu ---------------------------------------------------------
        float largest[thread_columns], sum[thread_columns], scale[thread_columns];
#pragma unroll
        for (int c = 0; c < thread_columns; ++c) largest[c] = lowest, sum[c] = 0.0f;
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
            T2 most = v[0].two[c / 2];
#pragma unroll
            for (int k = 1; k < PACKS; ++k) most = max2(most, v[k].two[c / 2]);
            const float2 both = to_float2(most);
            float& column_max = largest[c % thread_columns];
            column_max = fmaxf(column_max, c % 2 ? both.y : both.x);
        }
#pragma unroll
        for (Pack& pack : v) {
            if (!keep)
                for (unsigned& word : pack.word) asm volatile("" : "+r"(word));
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) {
                const float e = fast_exp(to_float(pack.element[c]) - largest[c % thread_columns]);
                sum[c % thread_columns] += e;
                if (keep) pack.kept[c % words] = e;
            }
        }

        // ---- exchange ---------------------------------------------------------------------------
        if (column_threads == 1 && CLUSTER == 1) {
#pragma unroll
            for (int c = 0; c < thread_columns; ++c) scale[c] = 1.0f / sum[c];
        } else {
            const int pair = member * thread_columns;  // the first, without padding
            const int at = tile * column_threads * pitch + pair / TILE * pitch + pair % TILE;
#pragma unroll
            for (int c = 0; c < thread_columns; c += access_floats)
                if (tile < tiles) {
                    put(shared.maxima, at + c, largest + c);
                    put(shared.sums, at + c, sum + c);
                }
            __syncthreads();
            merge(shared, rank);
            __syncthreads();
#pragma unroll
            for (int c = 0; c < thread_columns; ++c) {
                const int column = min(tile, tiles - 1) * TILE + (pair + c) % TILE;
                scale[c] = fast_exp(largest[c] - shared.column_max[column]);
                scale[c] *= shared.column_scale[column];
            }
        }

        // ---- write ------------------------------------------------------------------------------
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            if (!keep)
                for (unsigned& word : v[k].word) asm volatile("" : "+r"(word));
            float result[WIDTH + 1];
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) {
                const float e = keep ? v[k].kept[c % words]
                    : fast_exp(to_float(v[k].element[c]) - largest[c % thread_columns]);
                result[c] = e * scale[c % thread_columns];
            }
#pragma unroll
            for (int c = 0; c < WIDTH; c += 2)
                v[k].two[c / 2] = to_T2(make_float2(result[c], WIDTH > 1 ? result[c + 1] : 0.0f));
            if (k * stride < end)
                *reinterpret_cast<decltype(v[k].bits)*>(to + first + k * stride) = v[k].bits;
        }
    }
    if (STAGED) put_back(y + start - before, slots, before, stage_end);
}

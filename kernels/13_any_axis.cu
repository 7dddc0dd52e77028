// SPDX-License-Identifier: MIT
// Idea:     softmax along the middle of outer x dim x inner: neighbouring threads take neighbouring
//           columns, so that a column's elements need not be neighbours and nothing is transposed.
// Computes: softmax_any_axis
// Row:      CLUSTER blocks, 1 to 16
// Build:    line       = inner * size
//           WIDTH      = 16 / size when line % 16 == 0
//                      | 8 / size when line % 8 == 0
//                      | 2 when line % (2 * size) == 0
//                      | 1
//           bytes      = WIDTH * size
//           most_bytes = min(512, max(16, power_of_two(65536 / dim + 1) / 2))
//                        when dim <= 128 && bytes >= 8 || capability < 90
//                      | 256 when dim <= 2048 && line % 32 > 0 && (bytes >= 8 || size == 4)
//                      | 128 when dim <= 2048 || dim <= 4096 && line % 32 > 0
//                        || dim <= 8192 && size == 4
//                      | 64 when dim <= 32768 && bytes > 2
//                      | 16
//           unit       = min(32, most_bytes)
//           TILE       = inner when line <= most_bytes
//                      | ceil_div(line, unit * ceil_div(line, most_bytes)) * unit / size
//           packs      = dim * TILE / WIDTH
//           most       = 256 / max(bytes, 4) when bytes < 16
//                        && (packs > 524288 || packs > 131072 && bytes == 8
//                            || capability < 90 && packs * max(bytes, 4) > 131072)
//                      | 32 when bytes <= 4 && packs > 8192
//                      | 16 when bytes < 16 || packs > 65536 || packs > 8192 && capability < 90
//                        || size == 2 && (line <= 32 || dim > 512 && dim * line > 65536)
//                      | 8
//           CLUSTER    = 1 when capability < 90
//                      | min(16, power_of_two(ceil_div(packs, 512 * min(most, 128 / bytes))))
//           period     = TILE / WIDTH
//           share      = ceil_div(packs, CLUSTER)
//           MEMBERS    = period * ceil_div(share, period * most)
//           PACKS      = ceil_div(share, MEMBERS)
//           THREADS    = 128 when MEMBERS <= 128 && 128 / MEMBERS * MEMBERS > 100
//                      | 32 * ceil_div(max(1, 256 / MEMBERS) * MEMBERS, 32)
//           sm_threads = 576 when PACKS * bytes > 128
//                      | 1024
//           RESIDENT   = max(1, sm_threads / THREADS)
//           EVICT_LAST = 2 * outer * dim * line > l2 && bytes == 16 && capability >= 80
//           tiles      = THREADS / MEMBERS
// Launch:   block = THREADS, block == THREADS,
//           grid = ceil_div(outer * ceil_div(inner, TILE), THREADS / MEMBERS) * CLUSTER
// Shared:   0
// Columns:  TILE % WIDTH == 0 && line % (WIDTH * size) == 0
//           && dim * TILE <= CLUSTER * MEMBERS * PACKS * WIDTH
//           && PACKS * bytes <= 256 && THREADS <= 1024
//           && 64 + 8 * (tiles * (MEMBERS / period * (TILE + 4 * (TILE % 8 == 0)) + TILE)
//                        + (CLUSTER + 1) * TILE) <= 49152
//           && outer * ceil_div(inner, TILE) <= 2147483647
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   a lane moves less than 16 bytes at a time where lines are no whole packs; a tile of
//           long columns is 16 to 64 bytes of a line, and 128 would be faster.
// Measured: 4206 GB/s, 0.99 of a copy at 512 x 512 x 1024 (H200, 2026-11-29)
//
// y[o, :, i] = softmax(x[o, :, i]) for x and y of shape (outer, dim, inner), row-major. y must not
// overlap x. A line is inner neighbouring elements, a slice dim lines, a column what softmax is
// taken over: dim elements, a line apart. A column of all -inf, or one with NaN or +inf, gives NaN,
// as in PyTorch. Clusters need sm_90; one of 16 must be allowed once: see cluster.cuh. Measured
// with -ftz=true, as CuPy compiles.
//
// A tile is up to most_bytes of a line: more where lines do not begin at sectors, so that fewer
// bytes of other tiles are loaded with it, and less of long columns, so that a cluster can hold it.
// A thread has up to `most` packs. The limits were timed. Short slices, and slices of up to 1 MB
// whose lines do not begin at sectors, are faster with 13_whole_slices.cu.

#if !defined(WIDTH) || !defined(TILE) || !defined(MEMBERS) || !defined(PACKS) \
    || !defined(CLUSTER) || !defined(THREADS) || !defined(RESIDENT) || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DWIDTH=4 -DTILE=32 -DMEMBERS=512 -DPACKS=8 \
-DCLUSTER=1 -DTHREADS=512 -DRESIDENT=2 -DEVICT_LAST=1"
#endif

#include "include/cache_hints.cuh"
#include "include/columns.cuh"

static_assert(TILE % WIDTH == 0, "a line of a tile is whole packs");
static_assert(PACKS >= 1 && RESIDENT >= 1, "packs of a thread, blocks of a multiprocessor");
static_assert(EVICT_LAST == 0 || WIDTH * sizeof(T) == 16, "the hint goes with 16 bytes");

constexpr bool keep = sizeof(T) == 4;  // the exponentials, in the registers of their elements
constexpr int lines = MEMBERS * WIDTH / TILE;  // that MEMBERS threads load at the same time

// Loads a pack that is read once.
__device__ __forceinline__ void load(Pack& pack, const T* from)
{
#if EVICT_LAST
    pack.bits = load_evict_last(reinterpret_cast<const uint4*>(from), evict_last_policy());
#else
    if (sizeof(pack.bits) == 2) pack.two[0] = to_T2(make_float2(0.0f, 0.0f));  // the unused half
    pack.bits = *reinterpret_cast<const decltype(pack.bits)*>(from);
#endif
}

// ---- the kernel ---------------------------------------------------------------------------------

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, RESIDENT)
softmax_any_axis(const T* __restrict__ x, T* __restrict__ y, int outer, int dim, int inner)
{
    __shared__ Shared shared;
    const int rank = blockIdx.x % CLUSTER;

    // A block may write to another only when that one has started: see 08_cluster.cu.
    if (CLUSTER > 1) announce_block(&shared.all_arrived, 8 * CLUSTER * TILE);

    // ---- load -----------------------------------------------------------------------------------
    // Packs are dealt round-robin to the tile's threads. A round is whole lines, so that all packs
    // of a thread are in the same columns.
    const int tile = threadIdx.x / MEMBERS;  // of the block; past `tiles` for excess threads
    const int first = (rank * MEMBERS + threadIdx.x % MEMBERS) * WIDTH;  // element, in its tile
    const int across = (inner + TILE - 1) / TILE;                        // tiles of a slice
    const unsigned number = blockIdx.x / CLUSTER * tiles + tile;         // of the tile in x
    const int slice = number / across;
    const int column = number % across * TILE + first % TILE;  // of the first element
    const int line = first / TILE;                             // likewise
    const int end = tile < tiles && slice < outer && column < inner ? dim : 0;
    const long long start = ((long long)slice * dim + line) * inner + column;
    const long long stride = (long long)CLUSTER * lines * inner;  // elements up to the next pack
    Pack v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        if (line + k * CLUSTER * lines < end) {
            load(v[k], x + start + k * stride);
        } else {
#pragma unroll
            for (T2& two : v[k].two) two = to_T2(make_float2(minus_inf(), minus_inf()));
        }
    }

    // ---- reduce ---------------------------------------------------------------------------------
    // A pair for each of the thread's columns. 16-bit values are compared in 16 bits, since their
    // maximum is one of them.
    float largest[WIDTH], sum[WIDTH];
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) largest[c] = lowest, sum[c] = 0.0f;
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
        T2 most = v[0].two[c / 2];
#pragma unroll
        for (int k = 1; k < PACKS; ++k) most = max2(most, v[k].two[c / 2]);
        const float2 both = to_float2(most);
        largest[c] = fmaxf(largest[c], c % 2 ? both.y : both.x);
    }
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        // See 08_cluster.cu: in 16 bits a second exponential needs fewer registers.
        if (!keep)
            for (unsigned& word : v[k].word) asm volatile("" : "+r"(word));
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
            const float e = fast_exp(to_float(v[k].element[c]) - largest[c]);
            sum[c] += e;
            if (keep) v[k].element[c] = to_T(e);
        }
    }

    // ---- exchange -------------------------------------------------------------------------------
    // Between the threads that share columns, if a column has more than one.
    float scale[WIDTH];
    if (column_threads == 1 && CLUSTER == 1) {
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) scale[c] = 1.0f / sum[c];
    } else {
        const int to = (tile * lines + line % lines) * pitch + first % TILE;
#pragma unroll
        for (int c = 0; c < WIDTH; c += access_floats)
            if (tile < tiles) {
                put(shared.maxima, to + c, largest + c);
                put(shared.sums, to + c, sum + c);
            }
        __syncthreads();
        merge(shared, rank);
        __syncthreads();
        float column_max[WIDTH];
#pragma unroll
        for (int c = 0; c < WIDTH; c += access_floats) {
            const int from = min(tile, tiles - 1) * TILE + first % TILE + c;
            get(column_max + c, shared.column_max, from);
            get(scale + c, shared.column_scale, from);
        }
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) scale[c] *= fast_exp(largest[c] - column_max[c]);
    }

    // ---- write ----------------------------------------------------------------------------------
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        if (!keep)
            for (unsigned& word : v[k].word) asm volatile("" : "+r"(word));
        float result[WIDTH];
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
            const float element = to_float(v[k].element[c]);
            const float e = keep ? element : fast_exp(element - largest[c]);
            result[c] = e * scale[c];
        }
#pragma unroll
        for (int c = 0; c < WIDTH; c += 2)
            v[k].two[c / 2] = to_T2(make_float2(result[c], WIDTH > 1 ? result[c + 1] : 0.0f));
        if (line + k * CLUSTER * lines < end)
            *reinterpret_cast<decltype(v[k].bits)*>(y + start + k * stride) = v[k].bits;
    }
}

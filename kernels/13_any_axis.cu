// SPDX-License-Identifier: MIT
// Idea:     softmax along the middle of outer x dim x inner: neighbouring threads take neighbouring
//           columns, so that a column's elements need not be neighbours and nothing is transposed.
// Computes: softmax_any_axis
// Row:      CLUSTER blocks, 1 to 16
// Build:    line       = inner * size
//           slice      = dim * line
//           wider      = line % (2 * size) > 0 && dim % 2 == 0
//           most_cols  = 128 when capability < 90 || slice % (2 * size) > 0
//                      | 512 when wider == 1 && slice <= 100000000 / inner
//                      | 256 when slice <= 262144
//                      | 128
//           whole      = line % 32 > 0 && inner <= most_cols && slice <= 1048576
//           aligned    = slice when whole == 1
//                      | line
//           WIDTH      = 16 / size when aligned % 16 == 0
//                      | 8 / size when aligned % 8 == 0
//                      | 2 when aligned % (2 * size) == 0
//                      | 1
//           bytes      = WIDTH * size
//           most_bytes = 512 when dim <= 128 && bytes >= 8
//                      | 256 when line % 32 > 0 && dim <= 512 && bytes == 16
//                      | 256 when line % 32 > 0 && dim <= 2048 && capability >= 90
//                        && (size == 4 || WIDTH >= 4)
//                      | 128 when line % 32 > 0 && dim <= 4096 && capability >= 90
//                      | 16 when dim > 8192 && bytes == 2
//                      | 128 when dim <= 8192 && size == 4 && capability >= 90
//                      | 128 when dim <= 2048 && capability >= 90 || dim <= 512
//                      | 64 when dim <= 16384 && capability >= 90 || dim <= 1024
//                      | 32 when dim <= 2048
//                      | 16 when capability < 90
//                      | 128 when dim <= 20480 && size == 4
//                      | 64 when dim <= 40960 && size == 4 || dim <= 32768
//                      | 16
//           across     = ceil_div(line, most_bytes)
//           unit       = min(32, most_bytes)
//           TILE       = inner when whole == 1 || across == 1
//                      | ceil_div(line, unit * across) * unit / size
//           period     = TILE / WIDTH when TILE % WIDTH == 0
//                      | TILE
//           packs      = dim * TILE / WIDTH
//           large      = dim * TILE * size > 1048576
//           most       = 16 when large == 1 && bytes == 16
//                      | 28 when large == 1 && bytes == 8
//                      | 40 when large == 1
//                      | 2 when slice <= 64
//                      | 2 when whole == 1 && slice <= 2048 && bytes == 16 && size == 4
//                      | 4 when whole == 1 && slice <= 320 && WIDTH > 1
//                      | 4 when whole == 1 && slice <= 8192 && bytes == 16 && size == 4
//                      | 8 when whole == 1 && (slice <= 512 || slice <= 8192 && size == 4)
//                      | 24 when whole == 1 && slice <= 16384 && bytes == 2 && dim > 96
//                      | 32 when bytes <= 4 && packs > 8192
//                      | 16 when size == 2 && line > 8 && line <= 32
//                      | 16 when size == 2 && dim > 512 && slice > 65536
//                      | 8 when bytes == 16
//                      | 16
//           of_block   = min(4096, 512 * most) when bytes == 16
//                      | 512 * most
//           CLUSTER    = 1 when capability < 90
//                      | min(16, power_of_two(ceil_div(packs, of_block)))
//           share      = ceil_div(packs, CLUSTER)
//           members    = period * ceil_div(share, period * most)
//           MEMBERS    = period * ceil_div(share, 12 * period) when members > 512 && most == 8
//                      | members
//           PACKS      = ceil_div(share, MEMBERS)
//           THREADS    = 128 when CLUSTER == 1 && 128 / MEMBERS * MEMBERS > 100
//                      | 32 * ceil_div(256 / MEMBERS * MEMBERS, 32) when CLUSTER == 1
//                        && MEMBERS <= 128
//                      | 32 * ceil_div(MEMBERS, 32)
//           sm_threads = 512 when PACKS * bytes > 128
//                      | 1024
//           RESIDENT   = max(1, sm_threads / THREADS)
//           EVICT_LAST = 2 * outer * slice > l2 && bytes == 16 && capability >= 80
//           tiles      = THREADS / MEMBERS
//           held       = TILE when WIDTH % TILE == 0
//                      | WIDTH
//           pitch      = TILE + 4 when TILE % 8 == 0
//                      | TILE
// Launch:   block = THREADS, block == THREADS,
//           grid = ceil_div(outer * ceil_div(inner, TILE), THREADS / MEMBERS) * CLUSTER
// Shared:   0
// Columns:  (TILE == inner && dim * line % (WIDTH * size) == 0
//            || TILE % WIDTH == 0 && line % (WIDTH * size) == 0)
//           && dim * TILE <= CLUSTER * MEMBERS * PACKS * WIDTH && PACKS * WIDTH * size <= 256
//           && THREADS <= 1024 && 64 + 8 * (tiles * (MEMBERS * held / TILE) * pitch
//           + (tiles + CLUSTER + 1) * TILE) <= 49152
//           && outer * ceil_div(inner, TILE) <= 2147483647
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   a lane moves less than 16 bytes at a time where lines and slices are no whole packs; a
//           tile of long columns is 16 to 64 bytes of a line, and 128 would be faster.
// Measured: 4235 GB/s, 0.99 of a copy at 512 x 512 x 1024 (H200, 2026-11-29)
//
// y[o, :, i] = softmax(x[o, :, i]) for x and y of shape (outer, dim, inner), row-major. y must not
// overlap x. A line is inner neighbouring elements, a slice dim lines, a column what softmax is
// taken over: dim elements, a line apart. A column of all -inf, or one with NaN or +inf, gives NaN,
// as in PyTorch. Clusters need sm_90; one of 16 must be allowed once: see cluster.cuh. Measured
// with -ftz=true, as CuPy compiles.
//
// Where lines do not begin at sectors, a small slice is one tile (whole), and so is a larger one
// that has packs where its lines have none, if its messages fit in shared memory. Else a tile is up
// to most_bytes of a line: more where lines do not begin at sectors, so that fewer bytes of other
// tiles are loaded with it, and less of long columns, so that a cluster can hold it. A thread has
// about `most` packs: few of a small slice, so that there are enough threads, and many narrow ones,
// so that fewer blocks exchange pairs. The limits were timed, not derived.

#if !defined(WIDTH) || !defined(TILE) || !defined(MEMBERS) || !defined(PACKS) \
    || !defined(CLUSTER) || !defined(THREADS) || !defined(RESIDENT) || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DWIDTH=4 -DTILE=32 -DMEMBERS=512 -DPACKS=8 \
-DCLUSTER=1 -DTHREADS=512 -DRESIDENT=2 -DEVICT_LAST=1"
#endif

#include "include/cache_hints.cuh"
#include "include/cluster.cuh"
#include "include/formats.cuh"
#include "include/reductions.cuh"

static_assert(WIDTH >= 1 && (WIDTH & (WIDTH - 1)) == 0 && WIDTH * sizeof(T) <= 16,
              "WIDTH elements are one access: 1, 2, 4 or, of 2 bytes each, 8");
static_assert(MEMBERS * WIDTH % TILE == 0, "all packs of a thread are in the same columns");
static_assert(THREADS >= MEMBERS, "a block has at least one tile");
static_assert(CLUSTER == 1 || THREADS < 2 * MEMBERS, "a cluster has one tile");
static_assert(PACKS >= 1 && RESIDENT >= 1, "packs of a thread, blocks of a multiprocessor");
static_assert(EVICT_LAST == 0 || WIDTH * sizeof(T) == 16, "the hint goes with 16 bytes");

constexpr bool keep = sizeof(T) == 4;  // the exponentials, in the registers of their elements
constexpr int tiles = THREADS / MEMBERS;       // per block
constexpr int lines = MEMBERS * WIDTH / TILE;  // that MEMBERS threads load at the same time
constexpr int thread_columns = WIDTH % TILE == 0 ? TILE : WIDTH;  // columns per thread
constexpr int column_threads = MEMBERS * thread_columns / TILE;  // of a block that share a column

// ---- packs --------------------------------------------------------------------------------------

template <int bytes> struct Access;
template <> struct Access<2> { using type = unsigned short; };
template <> struct Access<4> { using type = unsigned; };
template <> struct Access<8> { using type = uint2; };
template <> struct Access<16> { using type = uint4; };

// Neighbouring elements that one access moves: 2 to 16 bytes.
union Pack {
    Access<WIDTH * sizeof(T)>::type bits;
    T element[WIDTH];
    T2 two[(WIDTH + 1) / 2];
    unsigned word[(WIDTH * sizeof(T) + 3) / 4];
    __device__ Pack() {}
};

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

// ---- the pairs of a tile's columns --------------------------------------------------------------

// The lanes of a warp that merge the pairs of a column, given the threads available per column.
__host__ __device__ constexpr int lanes_for(int threads)
{
    return threads < 2 ? 1 : threads >= 32 ? 32 : 2 * lanes_for(threads / 2);
}

// Pairs of neighbouring columns are adjacent; those of one column are a pitch apart. In merge a
// warp reads `lanes` pairs of each of 32 / lanes columns: from 32 banks, if the pitch is an odd
// multiple of 32 / lanes. The pitch is a multiple of what one access writes.
constexpr int threads_per_column = THREADS / (tiles * TILE);
constexpr int lanes =
    lanes_for(threads_per_column < column_threads ? threads_per_column : column_threads);
constexpr int access_floats = thread_columns < 4 ? thread_columns : 4;
constexpr int warp_columns = 32 / lanes > access_floats ? 32 / lanes : access_floats;
constexpr bool padded = lanes > 1 && TILE % warp_columns == 0;
constexpr int pitch = padded ? warp_columns * (TILE / warp_columns | 1) : TILE;

struct Shared {
    alignas(16) float maxima[tiles * column_threads * pitch];  // a pair per thread and column
    alignas(16) float sums[tiles * column_threads * pitch];
    alignas(16) float column_max[tiles * TILE];
    alignas(16) float column_scale[tiles * TILE];  // 1 / sum of e^(x - column_max)
    alignas(8) float2 pairs[CLUSTER > 1 ? TILE : 1];  // a pair of the block, for each column
    alignas(8) float2 messages[CLUSTER > 1 ? CLUSTER * TILE : 1];  // those of all blocks
    alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
};

static_assert(sizeof(Shared) <= 49152, "48 KB can be declared");

// Floats of neighbouring columns that one access to shared memory moves.
struct alignas(4 * access_floats) Floats {
    float value[access_floats];
};

__device__ __forceinline__ void put(float* array, unsigned index, const float* from)
{
    Floats floats;
#pragma unroll
    for (int i = 0; i < access_floats; ++i) floats.value[i] = from[i];
    reinterpret_cast<Floats*>(array)[index / access_floats] = floats;
}

__device__ __forceinline__ void get(float* to, const float* array, unsigned index)
{
    const Floats floats = reinterpret_cast<const Floats*>(array)[index / access_floats];
#pragma unroll
    for (int i = 0; i < access_floats; ++i) to[i] = floats.value[i];
}

// Merges the pairs of the tile's columns, with `lanes` lanes per column: first those of the block's
// threads, then, by messages, those of the cluster's blocks.
__device__ __forceinline__ void merge(Shared& shared, int rank)
{
    const int lane = threadIdx.x % lanes;
    for (int begin = 0; begin < tiles * TILE; begin += THREADS / lanes) {
        const int number = begin + threadIdx.x / lanes;
        const int c = min(number, tiles * TILE - 1);  // all lanes take part in the shuffles
        const float* maxima = shared.maxima + c / TILE * column_threads * pitch + c % TILE;
        const float* sums = shared.sums + c / TILE * column_threads * pitch + c % TILE;
        float largest = maxima[lane * pitch], sum = 0.0f;
#pragma unroll
        for (int part = lane + lanes; part < column_threads; part += lanes)
            largest = fmaxf(largest, maxima[part * pitch]);
        largest = warp_max<lanes>(largest);
#pragma unroll
        for (int part = lane; part < column_threads; part += lanes)
            sum += sums[part * pitch] * fast_exp(maxima[part * pitch] - largest);
        sum = warp_sum<lanes>(sum);
        if (CLUSTER > 1) {
            shared.pairs[c] = make_float2(largest, sum);
        } else {
            shared.column_max[c] = largest;
            shared.column_scale[c] = 1.0f / sum;
        }
    }
    if (CLUSTER == 1) return;

    // Neighbouring lanes send neighbouring messages to one block.
    __syncthreads();
    cluster_wait();
    for (int i = threadIdx.x; i < CLUSTER * TILE; i += THREADS) {
        const int c = i % TILE;
        send(shared.pairs[c], &shared.messages[rank * TILE + c], &shared.all_arrived, i / TILE);
    }
    mbarrier_wait(&shared.all_arrived);
    for (int begin = 0; begin < TILE; begin += THREADS / lanes) {
        const int c = min(begin + (int)threadIdx.x / lanes, TILE - 1);
        float largest = lowest, sum = 0.0f;
#pragma unroll
        for (int block = lane; block < CLUSTER; block += lanes)
            largest = fmaxf(largest, shared.messages[block * TILE + c].x);
        largest = warp_max<lanes>(largest);
#pragma unroll
        for (int block = lane; block < CLUSTER; block += lanes) {
            const float2 message = shared.messages[block * TILE + c];
            sum += message.y * fast_exp(message.x - largest);
        }
        sum = warp_sum<lanes>(sum);
        shared.column_max[c] = largest;
        shared.column_scale[c] = 1.0f / sum;
    }
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
    // of a thread are in the same columns. A tile as wide as its slice has no gaps: then a pack may
    // begin in one line and end in the next.
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
    float largest[thread_columns], sum[thread_columns];
#pragma unroll
    for (int c = 0; c < thread_columns; ++c) largest[c] = lowest, sum[c] = 0.0f;
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
        T2 most = v[0].two[c / 2];
#pragma unroll
        for (int k = 1; k < PACKS; ++k) most = max2(most, v[k].two[c / 2]);
        const float2 both = to_float2(most);
        largest[c % thread_columns] = fmaxf(largest[c % thread_columns], c % 2 ? both.y : both.x);
    }
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        // See 08_cluster.cu: in 16 bits a second exponential needs fewer registers.
        if (!keep)
            for (unsigned& word : v[k].word) asm volatile("" : "+r"(word));
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
            const float e = fast_exp(to_float(v[k].element[c]) - largest[c % thread_columns]);
            sum[c % thread_columns] += e;
            if (keep) v[k].element[c] = to_T(e);
        }
    }

    // ---- exchange -------------------------------------------------------------------------------
    // Between the threads that share columns, if a column has more than one.
    float scale[thread_columns];
    if (column_threads == 1 && CLUSTER == 1) {
#pragma unroll
        for (int c = 0; c < thread_columns; ++c) scale[c] = 1.0f / sum[c];
    } else {
        const int pair = threadIdx.x % MEMBERS * thread_columns;  // its first, without padding
        const int to = tile * column_threads * pitch + pair / TILE * pitch + pair % TILE;
#pragma unroll
        for (int c = 0; c < thread_columns; c += access_floats)
            if (tile < tiles) {
                put(shared.maxima, to + c, largest + c);
                put(shared.sums, to + c, sum + c);
            }
        __syncthreads();
        merge(shared, rank);
        __syncthreads();
        float column_max[thread_columns];
#pragma unroll
        for (int c = 0; c < thread_columns; ++c) {
            const int from = min(tile, tiles - 1) * TILE + (pair + c) % TILE;
            if (TILE % thread_columns > 0) {  // packs continue in the next line
                column_max[c] = shared.column_max[from];
                scale[c] = shared.column_scale[from];
            } else if (c % access_floats == 0) {
                get(column_max + c, shared.column_max, from);
                get(scale + c, shared.column_scale, from);
            }
        }
#pragma unroll
        for (int c = 0; c < thread_columns; ++c) scale[c] *= fast_exp(largest[c] - column_max[c]);
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
            const float e = keep ? element : fast_exp(element - largest[c % thread_columns]);
            result[c] = e * scale[c % thread_columns];
        }
#pragma unroll
        for (int c = 0; c < WIDTH; c += 2)
            v[k].two[c / 2] = to_T2(make_float2(result[c], WIDTH > 1 ? result[c + 1] : 0.0f));
        if (line + k * CLUSTER * lines < end)
            *reinterpret_cast<decltype(v[k].bits)*>(y + start + k * stride) = v[k].bits;
    }
}

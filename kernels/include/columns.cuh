// Packs, and (maximum, sum) pairs of columns. A tile has TILE columns and, in each block, MEMBERS
// threads. All packs of a thread are in the same columns; it has one pair for each of these.
#pragma once
#include "cluster.cuh"
#include "formats.cuh"
#include "reductions.cuh"

static_assert(WIDTH >= 1 && (WIDTH & (WIDTH - 1)) == 0 && WIDTH * sizeof(T) <= 16,
              "WIDTH must be 1, 2, 4 or, for elements of 2 bytes, 8");
static_assert(MEMBERS * WIDTH % TILE == 0, "all packs of a thread are in the same columns");
static_assert(THREADS >= MEMBERS, "a block has at least one tile");
static_assert(CLUSTER == 1 || THREADS < 2 * MEMBERS, "a cluster has one tile");

constexpr int tiles = THREADS / MEMBERS;                          // per block
constexpr int thread_columns = WIDTH % TILE == 0 ? TILE : WIDTH;  // a pair for each
constexpr int column_threads = MEMBERS * thread_columns / TILE;   // that share a column
constexpr int words = (WIDTH * sizeof(T) + 3) / 4;                // registers of a pack

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
    unsigned word[words];
    float kept[words];  // exponentials of elements that have a register each
    __device__ Pack() {}
};

// How many lanes of a warp merge the pairs of a column, given the threads available per column.
__host__ __device__ constexpr int lanes_for(int threads)
{
    return threads < 2 ? 1 : threads >= 32 ? 32 : 2 * lanes_for(threads / 2);
}

// Pairs of neighbouring columns are adjacent; those of one column are a pitch apart. In merge a
// warp reads `lanes` pairs of each of 32 / lanes columns: from 32 banks, if the pitch is an odd
// multiple of 32 / lanes, and from fewer where it must also be a multiple of access_floats.
constexpr int available = THREADS / (tiles * TILE);
constexpr int lanes = lanes_for(available < column_threads ? available : column_threads);
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
static_assert(sizeof(Shared) <= 49152, "at most 48 KB can be declared");

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

// Merges the pairs of the columns of all tiles, with `lanes` lanes per column: first those of the
// block's threads, then, by messages, those of the cluster's blocks.
__device__ __forceinline__ void merge(Shared& shared, int rank)
{
    const int lane = threadIdx.x % lanes;
    for (int begin = 0; begin < tiles * TILE; begin += THREADS / lanes) {
        const int c = min(begin + (int)threadIdx.x / lanes, tiles * TILE - 1);  // all lanes shuffle
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
        if (CLUSTER > 1) shared.pairs[c] = make_float2(largest, sum);
        shared.column_max[c] = largest;
        shared.column_scale[c] = 1.0f / sum;
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

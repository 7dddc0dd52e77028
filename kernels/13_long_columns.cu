// SPDX-License-Identifier: MIT
// Idea:     long columns along another axis: all blocks of a launch are resident, a group of them
//           shares a tile of columns, keeps it in shared memory, and exchanges messages in global
//           memory, in which each slot carries a question and then its answer.
// Computes: softmax_any_axis
// Row:      BLOCKS blocks
// Build:    line     = inner * size
//           whole    = line % 32 > 0 && inner <= 256 || line <= 128
//           aligned  = dim * line when whole == 1
//                    | line
//           WIDTH    = 16 / size when aligned % 16 == 0
//                    | 8 / size when aligned % 8 == 0
//                    | 2 when aligned % (2 * size) == 0
//                    | 1
//           bytes    = 128
//           TILE     = inner when whole == 1
//                    | min(inner, bytes / size)
//           period   = TILE / WIDTH when TILE % WIDTH == 0
//                    | TILE
//           target   = 256 when WIDTH * size == 16
//                    | 512
//           MEMBERS  = period * max(1, target / period)
//           THREADS  = 32 * ceil_div(MEMBERS, 32)
//           RESIDENT = 2
//           exchange = 8 * WIDTH * MEMBERS + 8 * TILE
//           room     = (231424 / RESIDENT - 1024 - exchange) / (MEMBERS * WIDTH * size)
//           tiles    = outer * ceil_div(inner, TILE)
//           rounds   = ceil_div(dim * TILE, WIDTH * MEMBERS)
//           need     = ceil_div(rounds, max(1, room))
//           all      = sms * RESIDENT
//           turns    = ceil_div(tiles, max(1, all / need))
//           groups   = min(all, ceil_div(tiles, turns))
//           BLOCKS   = min(all / groups, max(need, ceil_div(rounds, 4)))
//           KEPT     = min(room, ceil_div(rounds, BLOCKS))
// Launch:   block = THREADS, block == THREADS, grid = min(tiles, all / BLOCKS) * BLOCKS, cooperative
// Shared:   KEPT * MEMBERS * WIDTH * size
// Workspace: 8 * outer * inner * BLOCKS
// Columns:  (TILE == inner && dim * line % (WIDTH * size) == 0
//            || TILE % WIDTH == 0 && line % (WIDTH * size) == 0)
//           && BLOCKS <= all && THREADS <= 1024 && exchange <= 49152 && KEPT >= 1 && KEPT <= room
//           && outer * ceil_div(inner, TILE) <= 1073741823
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_90
// Reads:    1 to 2 reads + 1 write
// Wastes:   a message takes longer than the bytes of a small slice; what the shared memory of all
//           blocks does not hold of a tile is read twice.
// Measured: not yet
//
// y[o, :, i] = softmax(x[o, :, i]) for x and y of shape (outer, dim, inner), row-major. y must not
// overlap x. Lines, slices and columns are those of 13_any_axis.cu, and so are packs that continue
// in the next line. A column of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. The
// workspace must hold zeros before the first launch, and every launch leaves zeros: see
// 09_grid.cu, also for launches that are aborted or run at the same time. Measured with -ftz=true,
// as CuPy compiles.

#if !defined(WIDTH) || !defined(TILE) || !defined(MEMBERS) || !defined(THREADS) \
    || !defined(RESIDENT) || !defined(BLOCKS) || !defined(KEPT)
#error "compile with all macros of the Build table: -DWIDTH=4 -DTILE=32 -DMEMBERS=256 \
-DTHREADS=256 -DRESIDENT=2 -DBLOCKS=66 -DKEPT=20"
#endif

#include "include/formats.cuh"
#include "include/grid_exchange.cuh"
#include "include/reductions.cuh"

static_assert(WIDTH >= 1 && (WIDTH & (WIDTH - 1)) == 0 && WIDTH * sizeof(T) <= 16,
              "WIDTH elements are one access: 1, 2, 4 or, of 2 bytes each, 8");
static_assert(MEMBERS * WIDTH % TILE == 0, "all packs of a thread are in the same columns");
static_assert(THREADS >= MEMBERS && THREADS % 32 == 0, "whole warps work on a tile");
static_assert(BLOCKS >= 1 && KEPT >= 1 && RESIDENT >= 1, "blocks of a tile, packs of a thread");

constexpr int lines = MEMBERS * WIDTH / TILE;  // that the block's threads load at the same time
constexpr int warps = THREADS / 32;
constexpr int batch = WIDTH == 8 ? 4 : 8;  // packs that a thread loads at the same time

// ---- packs --------------------------------------------------------------------------------------

template <int bytes> struct Access;
template <> struct Access<2> { using type = unsigned short; };
template <> struct Access<4> { using type = unsigned; };
template <> struct Access<8> { using type = uint2; };
template <> struct Access<16> { using type = uint4; };
using Bits = Access<WIDTH * sizeof(T)>::type;

// Neighbouring elements that one access moves: 2 to 16 bytes.
union Pack {
    Bits bits;
    T element[WIDTH];
    __device__ Pack() {}
};

// Starts the copy of a pack into shared memory: through no register, if it has 4 bytes or more.
__device__ __forceinline__ void copy_async(Bits* to, const Bits* from)
{
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    if (sizeof(Bits) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     ::"r"(address), "l"(from) : "memory");
    else if (sizeof(Bits) >= 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                     ::"r"(address), "l"(from), "n"(sizeof(Bits) >= 4 ? sizeof(Bits) : 4) : "memory");
    else
        *to = *from;
}

// Ends a group of copies, and waits until at most `pending` of the latest groups are in flight.
__device__ __forceinline__ void end_group()
{
    if (sizeof(Bits) >= 4) asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int pending> __device__ __forceinline__ void wait_for_groups()
{
    if (sizeof(Bits) >= 4) asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// ---- pairs --------------------------------------------------------------------------------------

// The lanes of a warp that merge the pairs of a column, given their number.
__host__ __device__ constexpr int lanes_for(int pairs)
{
    return pairs < 2 ? 1 : pairs >= 32 ? 32 : 2 * lanes_for((pairs + 1) / 2);
}
constexpr int lanes = lanes_for(lines);

// The pair of `count` lanes from theirs.
template <int count>
__device__ __forceinline__ float2 merge(float2 pair)
{
    const float largest = warp_max<count>(pair.x);
    return make_float2(largest, warp_sum<count>(pair.y * fast_exp(pair.x - largest)));
}

// The pair of two.
__device__ __forceinline__ float2 merge(float2 a, float2 b)
{
    const float largest = fmaxf(a.x, b.x);
    return make_float2(largest, a.y * fast_exp(a.x - largest) + b.y * fast_exp(b.x - largest));
}

constexpr Message answered = 1ull << 63;  // the sign of a sum

// Merges the pairs of all blocks, which fill the slots of a column, and answers in these slots.
__device__ __forceinline__ void answer(Message* slots, int lane)
{
    constexpr int rounds = (BLOCKS + 31) / 32;
    Message messages[rounds];
    for (bool waits = true; waits;) {
        waits = false;
#pragma unroll
        for (int i = 0; i < rounds; ++i) {
            messages[i] = message_of(make_float2(lowest, 0.0f));  // no such block
            if (lane + 32 * i < BLOCKS) messages[i] = load_relaxed(slots + lane + 32 * i);
            waits = waits || !messages[i];
        }
    }
    __syncwarp();
    float2 pair = pair_of(messages[0]);
#pragma unroll
    for (int i = 1; i < rounds; ++i) pair = merge(pair, pair_of(messages[i]));
    pair = merge<32>(pair);
    const Message result = message_of(make_float2(pair.x, 1.0f / pair.y)) | answered;
    for (int block = lane; block < BLOCKS; block += 32) store_relaxed(slots + block, result);
}

// ---- the kernel ---------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
softmax_long_columns(const T* __restrict__ x, T* __restrict__ y, int outer, int dim, int inner,
                     Message* workspace)
{
    extern __shared__ uint4 dynamic_shared[];
    __shared__ alignas(16) float2 pairs[MEMBERS * WIDTH];  // of each thread and column
    __shared__ float2 columns[TILE];                       // maximum, 1 / sum of e^(x - maximum)
    Bits* kept = reinterpret_cast<Bits*>(dynamic_shared) + threadIdx.x;  // MEMBERS apart
    const int member = blockIdx.x % BLOCKS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = (member * MEMBERS + threadIdx.x) * WIDTH;  // element, in its tile
    const int across = (inner + TILE - 1) / TILE;                // tiles of a slice

    const int column = first % TILE, line = first / TILE;
    const int most = (dim + BLOCKS * lines - 1) / (BLOCKS * lines);      // packs of a thread
    const long long stride = (long long)BLOCKS * lines * inner / WIDTH;  // in packs
    const auto offset = [&](int tile) {  // of the thread's first pack
        return ((long long)(tile / across) * dim + line) * inner + tile % across * TILE + column;
    };
    const auto packs_of = [&](int tile) {
        return threadIdx.x < MEMBERS && tile < outer * across
                && tile % across * TILE + column < inner ? most - (line + (most - 1) * BLOCKS * lines >= dim) : 0;
    };
    const auto copy_batch = [&](const Bits* from, int packs, int k) {
#pragma unroll
        for (int b = 0; b < batch; ++b)
            if (k + b < min(packs, KEPT))
                copy_async(kept + (k + b) * MEMBERS, from + (k + b) * stride);
        end_group();
    };
    int tile = blockIdx.x / BLOCKS;
    for (int k = 0; k < KEPT; k += batch)
        copy_batch(reinterpret_cast<const Bits*>(x + offset(tile)), packs_of(tile), k);

    for (int next; tile < outer * across; tile = next) {
        // ---- load and reduce --------------------------------------------------------------------
        // Packs are dealt round-robin to the threads of all blocks of the tile.
        next = tile + gridDim.x / BLOCKS;
        const long long slice = tile / across;
        const int origin = tile % across * TILE, width = min(TILE, inner - origin);
        const int packs = packs_of(tile), next_packs = packs_of(next);
        const Bits* from = reinterpret_cast<const Bits*>(x + offset(tile));
        const Bits* from_next = reinterpret_cast<const Bits*>(x + offset(next));
        Bits* to = reinterpret_cast<Bits*>(y + offset(tile));
        float largest[WIDTH], sum[WIDTH];
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) largest[c] = lowest, sum[c] = 0.0f;
        for (int k = 0; k < packs; k += batch) {
            wait_for_groups<(KEPT + batch - 1) / batch - 1>();
            end_group();
            Pack v[batch];
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                if (k + b < packs) {
                    v[b].bits = k + b < KEPT ? kept[(k + b) * MEMBERS] : from[(k + b) * stride];
                } else {
#pragma unroll
                    for (T& element : v[b].element) element = to_T(minus_inf());
                }
            }
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) {
                const float before = largest[c];
#pragma unroll
                for (Pack& pack : v) largest[c] = fmaxf(largest[c], to_float(pack.element[c]));
                sum[c] *= fast_exp(before - largest[c]);
#pragma unroll
                for (Pack& pack : v) sum[c] += fast_exp(to_float(pack.element[c]) - largest[c]);
            }
        }

        // ---- exchange ---------------------------------------------------------------------------
        // The block's pair of each column goes into its slot of the column. Each column has a block
        // that answers.
        if (threadIdx.x < MEMBERS)
#pragma unroll
            for (int c = 0; c < WIDTH; ++c)
                pairs[threadIdx.x * WIDTH + c] = make_float2(largest[c], sum[c]);
        __syncthreads();
        Message* slots = workspace + (slice * inner + origin) * BLOCKS;
        for (int begin = 0; begin < TILE; begin += THREADS / lanes) {
            const int number = begin + threadIdx.x / lanes, part = threadIdx.x % lanes;
            const int c = min(number, TILE - 1);  // all lanes take part in the shuffles
            float2 pair = make_float2(lowest, 0.0f);
            for (int i = part; i < lines; i += lanes) pair = merge(pair, pairs[i * TILE + c]);
            pair = merge<lanes>(pair);
            if (part == 0 && number < width)
                store_relaxed(slots + (long long)c * BLOCKS + member, message_of(pair));
        }
        for (int c = member + warp * BLOCKS; c < width; c += warps * BLOCKS)
            answer(slots + (long long)c * BLOCKS, lane);
        for (int c = threadIdx.x; c < width; c += THREADS) {
            Message* slot = slots + (long long)c * BLOCKS + member;
            Message message = 0;
            while (!(message & answered)) message = load_relaxed(slot);
            store_relaxed(slot, 0);
            columns[c] = pair_of(message & ~answered);
        }
        __syncthreads();

        // ---- write ------------------------------------------------------------------------------
        float2 whole[WIDTH];
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) whole[c] = columns[(column + c) % TILE];
        for (int k = 0; k < max(most, KEPT); k += batch) {
            Pack v[batch];
#pragma unroll
            for (int b = 0; b < batch; ++b)
                if (k + b < packs)
                    v[b].bits = k + b < KEPT ? kept[(k + b) * MEMBERS]
                                             : from[(k + b) * stride];
            if (k < KEPT) copy_batch(from_next, next_packs, k);
#pragma unroll
            for (int b = 0; b < batch; ++b) {
#pragma unroll
                for (int c = 0; c < WIDTH; ++c) {
                    T& element = v[b].element[c];
                    element = to_T(fast_exp(to_float(element) - whole[c].x) * whole[c].y);
                }
                if (k + b < packs) to[(k + b) * stride] = v[b].bits;
            }
        }
    }
}

// SPDX-License-Identifier: MIT
// Idea:     many blocks of one launch share a row, more than a cluster can hold; they exchange
//           messages in global memory, where one 8-byte store is both data and signal.
// Row:      BLOCKS blocks
// Build:    THREADS      = 512 when rows == 1
//                        | 384
//           few_packs    = 11 when rows > 1
//                        | size
//           few          = ceil_div(row / 16, few_packs * THREADS)
//           most         = 8 * size
//           BLOCKS       = few when rows * few <= sms
//                        | sms when rows == 1
//                        | ceil_div(row / 16, most * THREADS)
//           PACKS        = ceil_div(row / 16, BLOCKS * THREADS)
//           STREAMING    = rows * row <= 2097152 || 3 * rows * row > 2 * l2
//           PROGRAMMATIC = 0
// Launch:   block = THREADS, block == THREADS,
//           grid = min(rows, sms / BLOCKS) * BLOCKS, cooperative
// Shared:   0
// Workspace: 8 * rows * BLOCKS * BLOCKS
// Columns:  row % 16 == 0 && row >= 32768 && BLOCKS <= sms
//           && row <= 16 * BLOCKS * THREADS * PACKS && PACKS <= most
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_90
// Reads:    1 read + 1 write
// Wastes:   a message takes longer than the bytes of 32000 columns; of many long rows, each waits
//           for its messages while its multiprocessors load nothing.
// Measured: 5.94 us, 0.63 of a copy at 1 x 1048576 (H200, 2026-11-27)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. The workspace must hold
// zeros before the first launch, and every launch leaves zeros. An aborted launch leaves messages,
// which the next would take for its own: fill the workspace with zeros again. Launches that may run
// at the same time, on two streams, need a workspace each. Measured with -ftz=true, as CuPy
// compiles.

#if !defined(THREADS) || !defined(BLOCKS) || !defined(PACKS) || !defined(STREAMING) \
    || !defined(PROGRAMMATIC)
#error "compile with all macros of the Build table: -DTHREADS=512 -DBLOCKS=128 -DPACKS=4 \
-DSTREAMING=1 -DPROGRAMMATIC=1"
#endif

#include "include/cache_hints.cuh"
#include "include/grid_exchange.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"

static_assert(THREADS >= 32 && THREADS <= 1024 && THREADS % 32 == 0, "THREADS: 32, 64, ... 1024");
static_assert(BLOCKS >= 1, "BLOCKS must be at least 1");
static_assert(PROGRAMMATIC == 0 || PROGRAMMATIC == 1, "PROGRAMMATIC must be 1 (yes) or 0 (no)");

constexpr int warps = THREADS / 32;

// Loads 16 bytes that are read once. After a programmatic launch the grid before may still write x:
// the compiler must not load it as read-only then.
__device__ __forceinline__ uint4 load(const uint4* from)
{
    return STREAMING ? __ldcs(from) : PROGRAMMATIC ? __ldca(from) : *from;
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_grid(const T* __restrict__ x, T* __restrict__ y, int rows, int cols, Message* workspace)
{
    __shared__ float2 pairs[warps];
    __shared__ float2 row_pair;
    const int member = blockIdx.x % BLOCKS;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int packs = cols / width;

    // After a programmatic launch this grid starts while the previous one still runs; it must not
    // access x or slots before that has ended. The next grid may start once every block of this one
    // has started, so that it takes no room that a block of this one needs.
    if (PROGRAMMATIC) {
        asm volatile("griddepcontrol.launch_dependents;");
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }

    for (int row = blockIdx.x / BLOCKS; row < rows; row += gridDim.x / BLOCKS) {
        // ---- load -------------------------------------------------------------------------------
        const uint4* from = reinterpret_cast<const uint4*>(x + (long long)row * cols);
        uint4* to = reinterpret_cast<uint4*>(y + (long long)row * cols);
        float2 v[PACKS][pairs_per_pack];
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int pack = (k * BLOCKS + member) * THREADS + threadIdx.x;
            if (pack < packs) {
                Pack loaded;
                loaded.bits = load(from + pack);
#pragma unroll
                for (int c = 0; c < pairs_per_pack; ++c) v[k][c] = to_float2(loaded.columns[c]);
            } else {
#pragma unroll
                for (int c = 0; c < pairs_per_pack; ++c)
                    v[k][c] = make_float2(minus_inf(), minus_inf());
            }
        }

        // ---- reduce -----------------------------------------------------------------------------
        float thread_max = lowest;
#pragma unroll
        for (int k = 0; k < PACKS; ++k)
#pragma unroll
            for (int c = 0; c < pairs_per_pack; ++c)
                thread_max = fmaxf(thread_max, fmaxf(v[k][c].x, v[k][c].y));
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < PACKS; ++k)
#pragma unroll
            for (int c = 0; c < pairs_per_pack; ++c) {
                v[k][c].x = fast_exp(v[k][c].x - thread_max);
                v[k][c].y = fast_exp(v[k][c].y - thread_max);
                sum += v[k][c].x + v[k][c].y;
            }
        const float2 pair = warp_pair(thread_max, sum);
        if (lane == 0) pairs[warp] = pair;
        __syncthreads();

        // ---- exchange ---------------------------------------------------------------------------
        // One warp writes this block's message into its slot at every block. These slots serve no
        // other row, so nothing has to be waited for before writing.
        if (warp == 0) {
            Message* slots = workspace + (long long)row * BLOCKS * BLOCKS;
            const Message message = message_of(merge_pairs(pairs, warps));
            for (int to_block = lane; to_block < BLOCKS; to_block += 32)
                store_relaxed(slots + to_block * BLOCKS + member, message);

            // It reads this block's slots until all messages are there, empties them for the next
            // launch, and merges them. Loads by all warps would delay the messages.
            Message* own_slots = slots + member * BLOCKS;
            constexpr int rounds = (BLOCKS + 31) / 32;
            Message messages[rounds];
            for (bool waits = true; waits;) {
                waits = false;
#pragma unroll
                for (int i = 0; i < rounds; ++i) {
                    messages[i] = message_of(make_float2(lowest, 0.0f));  // no such block
                    if (lane + 32 * i < BLOCKS)
                        messages[i] = load_relaxed(own_slots + lane + 32 * i);
                }
#pragma unroll
                for (int i = 0; i < rounds; ++i) waits = waits || !messages[i];
            }
            __syncwarp();
            float largest = lowest;
#pragma unroll
            for (int i = 0; i < rounds; ++i) {
                if (lane + 32 * i < BLOCKS) store_relaxed(own_slots + lane + 32 * i, 0);
                largest = fmaxf(largest, pair_of(messages[i]).x);
            }
            largest = warp_max(largest);
            float row_sum = 0.0f;
#pragma unroll
            for (int i = 0; i < rounds; ++i)
                row_sum += pair_of(messages[i]).y * fast_exp(pair_of(messages[i]).x - largest);
            row_sum = warp_sum(row_sum);
            if (lane == 0) row_pair = make_float2(largest, row_sum);
        }
        __syncthreads();
        const float scale = fast_exp(thread_max - row_pair.x) / row_pair.y;

        // ---- write ------------------------------------------------------------------------------
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int pack = (k * BLOCKS + member) * THREADS + threadIdx.x;
            Pack result;
#pragma unroll
            for (int c = 0; c < pairs_per_pack; ++c)
                result.columns[c] = to_T2(make_float2(v[k][c].x * scale, v[k][c].y * scale));
            if (pack < packs) store<STREAMING>(to + pack, result.bits);
        }
    }
}

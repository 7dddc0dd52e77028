// SPDX-License-Identifier: MIT
// Idea:     operations before and after softmax need no pass of their own: `Load` scales, adds a
//           bias and masks, `Store` writes; packs that a causal mask hides are never loaded, and
//           what dropout drops is drawn, not stored.
// Row:      CLUSTER blocks, 1 to 16
// Build:    MASK       = 0
//           BIAS       = 0
//           LOG        = 0
//           WIDE       = 0
//           DROPOUT    = 0
//           y_size     = size * (1 + WIDE)
//           packs      = cols * y_size / 16
//           CLUSTER    = 1 when packs < 1024 || packs * size <= 2048
//                      | min(16, max(2, power_of_two(ceil_div(row, 16384))))
//           share      = ceil_div(packs, CLUSTER)
//           most       = 8 when y_size == 4 && (share > 1024 || DROPOUT == 1)
//                      | 4
//           THREADS    = 32 when share <= 64
//                      | 32 * ceil_div(share, 32 * most)
//           PACKS      = ceil_div(share, THREADS)
//           ROWS       = 2 when THREADS == 32
//                      | 1
//           sm_threads = 1280 when BIAS + DROPOUT == 0 && y_size == 2 && PACKS > 2
//                      | 1024
//           RESIDENT   = max(1, sm_threads / (ROWS * THREADS))
//           EVICT_LAST = 2 * rows * row > l2
// Launch:   block = ROWS * THREADS, block == ROWS * THREADS, grid = ceil_div(rows, ROWS) * CLUSTER
// Shared:   0
// Columns:  row * (1 + WIDE) % 16 == 0 && row >= 1024 && PACKS <= 8 && ROWS * THREADS <= 1024
//           && row * (1 + WIDE) <= 16 * CLUSTER * THREADS * PACKS
// Features: (WIDE == 0 || size == 2) && (DROPOUT + ZERO == 0 || LOG == 0)
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_90
// Reads:    1 read + 1 write
// Wastes:   hidden columns are not loaded, but computed. A mask or a bias as large as x is read
//           beside it. In 16 bits the random numbers of dropout take time.
// Measured: 4342 GB/s, 1.01 of a copy (best copy 1.01) at 65536 x 4096 (H200, 2026-11-27)
//
// y[row] = softmax(x[row] * scale + bias), or its logarithm, for row-major x and y of shape
// (rows, cols). Masked columns count as -inf, whatever x is there.
//
//     MASK=0  no mask                BIAS=0  no bias               LOG=0  softmax
//     MASK=1  mask, not 0 = masked   BIAS=1  bias, of x's dtype    LOG=1  log-softmax
//     MASK=2  causal: query i sees keys 0 to i + diagonal
//     WIDE=0  y is of x's dtype      WIDE=1  y is float32, x of 16 bits
//     DROPOUT=0  nothing is dropped  DROPOUT=1  each column with probability p
//     ZERO=0  a row of only -inf gives NaN, as in torch.softmax    ZERO=1  it gives 0
//
// Row r of x uses row r / mask_group * mask_rows + r / mask_repeat % mask_rows of the mask,
// and likewise of the bias. For x of shape (batch, heads, queries, keys) and a mask of shape
//
//     (batch, 1, queries, keys)  mask_rows = queries, mask_repeat = 1, mask_group = heads * queries
//     (batch, heads, 1, keys)  mask_rows = batch * heads, mask_repeat = queries, mask_group = rows
//
// A causal mask has no array, and row r is query r / mask_repeat % mask_rows. With diagonal = 0,
// query and key 0 are aligned; with keys - queries, the last ones are.
//
// All combinations but LOG with DROPOUT or ZERO are supported. An array that a build does not read
// may be a null pointer. y must not overlap the others. A row is whole packs of 16 bytes of y and
// at least 1024 bytes of x. The mask is that of masked_fill; in scaled_dot_product_attention, a
// boolean mask is the opposite. A row whose logits include NaN or +inf gives NaN. A cluster of 16
// must be allowed once: see cluster.cuh. Measured with -ftz=true, as CuPy compiles.
//
// p is from 0 to 1, rounded down to a multiple of 1/65536. What dropout keeps is divided by 1 - p,
// which preserves the mean; with p = 1 all is 0. NaN stays NaN. What is dropped depends on seed,
// offset, row and column alone: 14_backward.cu draws it again. Each call with the same seed needs
// its own offset. A CUDA graph holds seed and offset: each launch of it drops the same columns.

#if !defined(MASK) || !defined(BIAS) || !defined(LOG) || !defined(WIDE) || !defined(CLUSTER) \
    || !defined(DROPOUT) || !defined(THREADS) || !defined(PACKS) || !defined(ROWS) \
    || !defined(RESIDENT) || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DMASK=2 -DBIAS=0 -DLOG=0 -DWIDE=0 \
-DDROPOUT=0 -DCLUSTER=1 -DTHREADS=256 -DPACKS=4 -DROWS=1 -DRESIDENT=4 -DEVICT_LAST=1"
#endif

#ifndef ZERO
#define ZERO 0
#endif

#include "include/cluster.cuh"
#include "include/fused.cuh"
#include "include/random.cuh"

static_assert(MASK >= 0 && MASK <= 2, "MASK must be 0 (none), 1 (an array) or 2 (causal)");
static_assert(LOG == 0 || LOG == 1, "LOG must be 1 (yes) or 0 (no)");
static_assert(DROPOUT == 0 || DROPOUT == 1 && LOG == 0, "dropout is for probabilities");
static_assert(ZERO == 0 || ZERO == 1 && LOG == 0, "a logarithm of 0 is -inf");
static_assert(ROWS * THREADS <= 1024, "a block has up to 1024 threads");
static_assert(CLUSTER == 1 || ROWS == 1, "a block of a cluster has part of one row");
static_assert(PACKS >= 1, "PACKS must be at least 1");

// ---- what comes before softmax ------------------------------------------------------------------

// How a row is loaded: x * scale + bias, and -inf where a column is masked.
struct Load {
    const Input* x;
    Beside beside;  // bias and mask
    float scale;
    int visible;  // columns 0 to visible - 1; the others are masked, or not there

    struct Fetched {
        Input x;
        Beside::Fetched beside;
    };

    // All loads of a pack. If it is hidden whole, x is 0, and bias and mask are those of pack 0 of
    // the same row: whatever they are, the pack stays hidden, or the row is NaN anyway.
    __device__ __forceinline__ Fetched fetch(int pack) const
    {
        const bool wanted = pack * columns < visible;
        return {load_if(wanted, x + pack), beside.fetch(wanted ? pack : 0)};
    }

    // The logits of a pack. In fp32: 16-bit columns are rounded once, at the very end.
    __device__ __forceinline__ void logits(const Fetched& fetched, int pack,
                                           float (&v)[columns]) const
    {
        const T2* pairs = reinterpret_cast<const T2*>(&fetched.x);
        const int here = visible - pack * columns;  // so many columns of the pack are visible
        const float hide = here > 0 ? 0.0f : minus_inf();  // -inf: hidden whole, or past the end
#pragma unroll
        for (int c = 0; c < columns; c += 2) {
            const float2 from = to_float2(pairs[c / 2]);
            const float2 plus = fetched.beside.bias_at(c);
            v[c] = fmaf(from.x, scale, plus.x + hide);
            v[c + 1] = fmaf(from.y, scale, plus.y + hide);
        }
#pragma unroll
        for (int c = 0; c < columns; ++c)
            if ((MASK == 2 && c >= here) || fetched.beside.masks(c)) v[c] = minus_inf();
    }
};

// ---- what comes after it -----------------------------------------------------------------------

// How a row is written. A pack holds exponentials; for the logarithm, still the logits.
struct Store {
    Output* y;
    float factor;  // exp(thread_max - row_max) / row_sum
    float row_max, log_sum;

    __device__ __forceinline__ float result(float v) const
    {
        // In this order: beside a large row_max, row_max + log_sum would round log_sum away.
        return LOG ? (v - row_max) - log_sum : v * factor;
    }

    __device__ __forceinline__ void operator()(int pack, const float (&v)[columns]) const
    {
        Output bits;
#pragma unroll
        for (int c = 0; c < columns; c += 2) {
            const float2 two = make_float2(result(v[c]), result(v[c + 1]));
            if (WIDE)
                reinterpret_cast<float2*>(&bits)[c / 2] = two;
            else
                reinterpret_cast<T2*>(&bits)[c / 2] = to_T2(two);
        }
        y[pack] = bits;
    }
};

// ---- the kernel ---------------------------------------------------------------------------------

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(ROWS * THREADS, RESIDENT)
softmax_fused(const T* __restrict__ x, Y* __restrict__ y, int rows, int cols, float scale,
              const T* __restrict__ bias, int bias_rows,
              const unsigned char* __restrict__ mask, int mask_rows, int mask_repeat, float p,
              unsigned long long seed, unsigned long long offset, int bias_repeat, int bias_group,
              int mask_group, long long diagonal)
{
    __shared__ alignas(8) float2 messages[ROWS][senders];   // a pair of every warp of a row
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int thread = threadIdx.x % THREADS;
    const int warp = thread / 32;
    const int lane = thread % 32;
    float2* own = messages[threadIdx.x / THREADS];  // those of the thread's row

    if (CLUSTER > 1) announce_block(&all_arrived, 8 * senders);

    // ---- load -----------------------------------------------------------------------------------
    // Causal rows that see most come first, so that the blocks that end last have little to do.
    const int place = blockIdx.x / CLUSTER, places = gridDim.x / CLUSTER;
    const int row = (MASK == 2 ? places - 1 - place : place) * ROWS + threadIdx.x / THREADS;
    const int shown = row < rows ? cols : 0;  // the last block may have a row too many
    const int own_row = min(row, rows - 1);
    const int mask_row = MASK == 1 ? row_beside(own_row, mask_rows, mask_repeat, mask_group) : 0;
    const int bias_row = BIAS ? row_beside(own_row, bias_rows, bias_repeat, bias_group) : 0;
    const int query = MASK == 2 ? own_row / mask_repeat % mask_rows : 0;
    const Load load = {
        reinterpret_cast<const Input*>(x + (long long)row * cols),
        beside(bias, bias_row, mask, mask_row, cols),
        scale,
        MASK == 2 ? visible_columns(query, diagonal, shown) : shown,
    };
    const int first = rank * THREADS + thread, step = CLUSTER * THREADS;  // of packs
    Load::Fetched fetched[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) fetched[k] = load.fetch(first + k * step);
    float v[PACKS][columns];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) load.logits(fetched[k], first + k * step, v[k]);

    // ---- reduce ---------------------------------------------------------------------------------
    float thread_max = lowest;
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int c = 0; c < columns; ++c) thread_max = fmaxf(thread_max, v[k][c]);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int c = 0; c < columns; ++c) {
            const float e = fast_exp(v[k][c] - thread_max);
            sum += e;
            if (!LOG) v[k][c] = e;
        }
    const float2 message = warp_pair(thread_max, sum);

    // ---- exchange -------------------------------------------------------------------------------
    // Lane r sends the warp's pair to block r: see 08_cluster.cu. A row of one warp sends none.
    if (CLUSTER == 1) {
        if (senders > 1 && lane == 0) own[warp] = message;
    } else {
        cluster_wait();
        if (lane < CLUSTER) send(message, &own[rank * warps + warp], &all_arrived, lane);
    }

    const Dropout dropout = {p, (unsigned)row, seed, offset};
    // Dropout is drawn while messages are in flight, of two packs at once, which hide each other's
    // latency. A block alone draws all at once: compilers move that up, behind the loads.
    constexpr int at_once = CLUSTER > 1 ? 2 : PACKS;
#pragma unroll
    for (int k = 0; DROPOUT && k < PACKS; k += at_once) {
        uint4 drawn[at_once];
        dropout.draw<columns>(first + k * step, step, drawn);
#pragma unroll
        for (int i = 0; i < at_once * columns; ++i) {
            const int c = i % columns, here = k + i / columns;
            if (here < PACKS && !dropout.stays(drawn[i / columns], c)) v[here][c] = 0.0f;
        }
    }

    if (CLUSTER > 1) mbarrier_wait(&all_arrived);
    if (CLUSTER == 1 && senders > 1) __syncthreads();

    const float2 row_pair = senders > 1 ? merge_pairs(own, senders) : message;

    // ---- write ----------------------------------------------------------------------------------
    const float row_sum = ZERO && row_pair.y == 0.0f ? 1.0f : row_pair.y;  // 0: all is -inf
    const Store store = {
        reinterpret_cast<Output*>(y + (long long)row * cols),
        fast_exp(thread_max - row_pair.x) / row_sum * dropout.factor(),
        row_pair.x,
        LOG ? logf(row_pair.y) : 0.0f,
    };
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
        if ((first + k * step) * columns < shown) store(first + k * step, v[k]);
}

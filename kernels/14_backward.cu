// SPDX-License-Identifier: MIT
// Idea:     the gradient dx = y * (dy - sum(y * dy)): y and dy stay in registers while the blocks
//           of a cluster exchange one sum.
// Computes: softmax_backward
// Row:      CLUSTER blocks, 1 to 16
// Build:    LOG        = 0
//           FROM_X     = 0
//           DROPOUT    = 0
//           packs      = row / 16
//           CLUSTER    = 1 when capability < 90 || packs <= 1024
//                      | min(16, power_of_two(ceil_div(packs, 1024)))
//           share      = ceil_div(packs, CLUSTER)
//           ROWS       = 4 when packs <= 128
//                      | 1
//           THREADS    = 32 when packs <= 128
//                      | 512 when FROM_X == 1 && size == 4 && share > 2048 && share <= 4096
//                      | max(64, 32 * ceil_div(share, 128))
//           PACKS      = ceil_div(share, THREADS)
//           RESIDENT   = max(1, 4096 / (THREADS * ROWS * max(4, PACKS)))
//           EVICT_LAST = 5 * rows * row > 4 * l2 && capability >= 80
// Launch:   block = THREADS * ROWS, block == THREADS * ROWS, grid = ceil_div(rows, ROWS) * CLUSTER
// Shared:   0
// Columns:  cols >= 1 && row % 16 == 0 && THREADS * ROWS <= 1024
//           && packs <= CLUSTER * THREADS * PACKS && PACKS <= 2 * size
//           && (ROWS == 1 || CLUSTER == 1 && THREADS == 32)
// Features: DROPOUT + MASK == 0 || LOG == 0
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    2 reads + 1 write
// Wastes:   y and dy both occupy registers: in float32 the longest row is half that of 08.
// Measured: 4396 GB/s, 1.00 of 00_two_reads at 65536 x 4096 (H200, 2026-11-27)
//
// For row-major y, dy and dx of shape (rows, cols), with y = softmax(scale * x), dy the gradient of
// a loss with respect to y, and dx that with respect to x:
//
//     dx = scale * y * (dy - sum(y * dy))
//     dx = scale * (dy - exp(y) * sum(dy))   LOG=1: y = log(softmax(scale * x))
//
// FROM_X=1: y was not kept. The parameter y is the input of softmax, scale * x, and softmax is
// computed again. DROPOUT=1: dy is the gradient with respect to what dropout left of y in
// 12_fused.cu; p, seed and offset tell what it dropped, and a CUDA graph holds them. Then y must be
// softmax before dropout, which 12_fused.cu does not write. With p = 1 dx is 0. MASK, 0 unless it
// is defined, is that of 12_fused.cu, with the same numbers: masked columns of y and dy count as 0,
// and packs that a causal mask hides are not loaded; dx is 0 there, in a fully masked row and, from
// x, in a row whose visible columns are all -inf. Without MASK, y is 0 where a column was masked,
// and so is dx; from x, y is -inf there. With LOG, dx is scale * dy there, which the caller must
// set to 0. scale is 1 where x was not scaled. A row must be whole packs of 16 bytes; dx must
// overlap neither y nor dy. A row whose softmax is NaN gives NaN, as in PyTorch. Clusters need
// sm_90; one of 16 must be allowed once: see cluster.cuh. Measured with -ftz=true, as CuPy
// compiles.

#if !defined(LOG) || !defined(FROM_X) || !defined(DROPOUT) || !defined(CLUSTER) \
    || !defined(ROWS) || !defined(THREADS) || !defined(PACKS) || !defined(RESIDENT) \
    || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DLOG=0 -DFROM_X=0 -DDROPOUT=0 -DCLUSTER=4 \
-DROWS=1 -DTHREADS=256 -DPACKS=4 -DRESIDENT=4 -DEVICT_LAST=1"
#endif

#include "include/cache_hints.cuh"
#include "include/cluster.cuh"
#include "include/forget.cuh"
#include "include/from_x.cuh"
#include "include/hidden.cuh"
#include "include/random.cuh"
#include "include/reductions.cuh"

static_assert(ROWS == 1 || CLUSTER == 1 && THREADS == 32, "ROWS above 1 needs a warp per row");
static_assert(PACKS * 16 <= 32 * sizeof(T), "PACKS must be at most 8, or 4 in 16 bits");
static_assert(DROPOUT == 0 || DROPOUT == 1 && LOG == 0, "DROPOUT must be 0, or 1 without LOG");

// What two columns add to dot.
__device__ __forceinline__ float product(float2 y, float2 dy)
{
    if (LOG) return dy.x + dy.y;
    return y.x * dy.x + y.y * dy.y;
}

// dx of two columns, for a scale of 1; with LOG y is its exponential.
__device__ __forceinline__ float2 gradient(float2 y, float2 dy, float dot)
{
    if (LOG) return make_float2(dy.x - y.x * dot, dy.y - y.y * dot);
    return make_float2(y.x * (dy.x - dot), y.y * (dy.y - dot));
}

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS * ROWS, RESIDENT)
softmax_backward(const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, int rows,
                 int cols, float scale, float p, unsigned long long seed,
                 unsigned long long offset, const unsigned char* __restrict__ mask, int mask_rows,
                 int mask_repeat, int mask_group, long long diagonal)
{
    __shared__ alignas(16) float4 messages[senders];        // what every warp of the row found
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int thread = threadIdx.x % THREADS;
    const int warp = thread / 32;
    const int lane = threadIdx.x % 32;
    const int row = blockIdx.x / CLUSTER * ROWS + threadIdx.x / THREADS;
    if (row >= rows) return;  // only if a row is one warp (ROWS > 1), and meets at no barrier

    if (CLUSTER > 1) announce_block(&all_arrived, 16 * senders);

    // ---- load -----------------------------------------------------------------------------------
    // The packs of a row are dealt to the threads of its cluster in turn. A thread has the same
    // packs of y and of dy, v[k] and d[k].
    const long long start = (long long)row * cols;
    const uint4* from = reinterpret_cast<const uint4*>(y + start);
    const uint4* from_d = reinterpret_cast<const uint4*>(dy + start);
    uint4* to = reinterpret_cast<uint4*>(dx + start);
    const int packs = cols / width;
    const Hidden hidden = hidden_of(row, cols, mask, mask_rows, mask_repeat, mask_group, diagonal);
    Pack v[PACKS], d[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * CLUSTER + rank) * THREADS + thread;
        if (pack < hidden.packs) {
            v[k].bits = load_once<EVICT_LAST>(from + pack);
            d[k].bits = load_once<EVICT_LAST>(from_d + pack);
        } else {
            fill(v[k], past_end());
            d[k].bits = make_uint4(0, 0, 0, 0);
        }
    }
    if (MASK) hidden.hide(v, d, rank * THREADS + thread, CLUSTER * THREADS);

    // ---- dropout --------------------------------------------------------------------------------
    const Dropout dropout = {p, (unsigned)row, seed, offset};
    uint4 drawn[PACKS];
    if (DROPOUT) dropout.draw<width>(rank * THREADS + thread, CLUSTER * THREADS, drawn);

    // ---- reduce ---------------------------------------------------------------------------------
    Found found = before(v);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        if (MASK == 2 && (k * CLUSTER + rank) * THREADS + thread >= hidden.packs) continue;
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            if (DROPOUT && !dropout.stays(drawn[k], 2 * c)) d[k].columns[c].x = T(0.0f);
            if (DROPOUT && !dropout.stays(drawn[k], 2 * c + 1)) d[k].columns[c].y = T(0.0f);
            const float2 g = to_float2(d[k].columns[c]);
            found.dot += product(found.y_of(v[k].columns[c]), g);
        }
    }

    // ---- exchange -------------------------------------------------------------------------------
    // As in 08_cluster.cu. A row of one warp sends nothing.
    Found of_row = found.over_warp();
    if (senders > 1) {
        const float4 message = make_float4(of_row.max, of_row.sum, of_row.dot, 0.0f);
        exchange(message, messages, &all_arrived, rank, warp, lane);
        of_row = merged(messages);
    }
    if (MASK && of_row.sum == 0.0f) of_row.sum = 1.0f;  // all is masked: y and dx are 0
    const float part = FROM_X ? fast_exp(found.max - of_row.max) / of_row.sum : 1.0f;
    if (FROM_X && !LOG) of_row.dot /= of_row.sum;
    const float factor = scale * dropout.factor();

    // ---- write ----------------------------------------------------------------------------------
    const unsigned zero = rows < 0;  // 0, but the compiler cannot know: for 16 bits
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = (k * CLUSTER + rank) * THREADS + thread;
        if (MASK == 2 && pack >= hidden.packs) {  // 0, or NaN if the row is
            fill(d[k], 0.0f * part * of_row.dot);
            if (pack < packs) to[pack] = d[k].bits;
            continue;
        }
        if (sizeof(T) == 2) forget(v[k].bits, zero), forget(d[k].bits, zero);  // keep no floats
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            const T2 columns = v[k].columns[c];
            const float2 g = to_float2(d[k].columns[c]);
            const float2 s = y_again(columns, found.max, part);
            const float2 q = gradient(s, g, of_row.dot);
            d[k].columns[c] = to_T2(make_float2(factor * q.x, factor * q.y));
        }
        if (pack < packs) to[pack] = d[k].bits;
    }
}

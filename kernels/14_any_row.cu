// SPDX-License-Identifier: MIT
// Idea:     the gradient of any row: packs between its first and its last 16-byte boundary, single
//           columns outside; short rows share a block, and a long one has a cluster.
// Computes: softmax_backward
// Row:      CLUSTER blocks, 1 to 16, or some lanes of a warp
// Build:    LOG        = 0
//           packs      = row / 16
//           spread     = min(ceil_div(4 * sms, rows), ceil_div(packs, 512))
//           CLUSTER    = 1 when capability < 90 || packs <= 1024
//                      | min(16, power_of_two(max(ceil_div(packs, 1024), spread)))
//           share      = ceil_div(packs, CLUSTER)
//           each       = 2 when rows * row <= l2 && (CLUSTER == 1 || share <= 512)
//                      | 4
//           least      = 2 when size == 4 || row % 16 == 0 || row % 8 == 0 && packs <= 2
//                      | 4
//           of_lane    = 2 when size == 4 || packs > 8 && packs <= 16
//                      | 3
//           lanes      = min(32, max(least, power_of_two(ceil_div(packs, of_lane))))
//           THREADS    = 32 when packs > 48 && packs <= 128 && 4 * rows * row <= l2
//                      | 128 when packs <= 128
//                      | min(1024, 32 * ceil_div(share, 32 * each))
//           ROWS       = THREADS / lanes when packs <= 128
//                      | 1
//           PACKS      = max(1, ceil_div(packs, lanes)) when packs <= 128
//                      | min(4, ceil_div(share, THREADS))
//           RESIDENT   = max(1, min(16, 4096 / (THREADS * max(4, PACKS))))
//           EVICT_LAST = 5 * rows * row > 4 * l2 && capability >= 80
// Launch:   block = THREADS, block == THREADS, grid = ceil_div(rows, ROWS) * CLUSTER
// Shared:   0
// Columns:  cols >= 1 && PACKS >= 1 && PACKS <= 8
//           && THREADS % 32 == 0 && THREADS <= 1024
//           && (ROWS == 1 || CLUSTER == 1 && THREADS % ROWS == 0 && 32 % (THREADS / ROWS) == 0)
// Align:    size
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    2 to 4 reads + 1 write
// Wastes:   what PACKS do not hold of a row is moved by element, and read a second time; so is all
//           where y, dy and dx are aligned differently.
// Measured: 4422 GB/s, 1.00 of 00_two_reads at 65536 x 4096 (H200, 2026-11-28)
//
// For row-major y, dy and dx of shape (rows, cols) of any alignment: dx is that of 14_backward.cu
// without a mask or dropout,
//
//     dx = scale * y * (dy - sum(y * dy))
//     dx = scale * (dy - exp(y) * sum(dy))   LOG=1: y = log(softmax(scale * x))
//
// dx must overlap neither y nor dy. A row whose softmax is NaN gives NaN, as in PyTorch. Clusters
// need sm_90; one of 16 must be allowed once: see cluster.cuh. Measured with -ftz=true, as CuPy
// compiles.

#if !defined(LOG) || !defined(CLUSTER) || !defined(THREADS) || !defined(ROWS) \
    || !defined(PACKS) || !defined(RESIDENT) || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DLOG=0 -DCLUSTER=1 -DTHREADS=128 -DROWS=32 \
-DPACKS=3 -DRESIDENT=8 -DEVICT_LAST=0"
#endif

#include "include/cache_hints.cuh"
#include "include/cluster.cuh"
#include "include/forget.cuh"
#include "include/packs.cuh"
#include "include/reductions.cuh"

static_assert(LOG == 0 || LOG == 1, "LOG must be 1 (yes) or 0 (no)");
static_assert(ROWS == 1 || CLUSTER == 1 && THREADS % ROWS == 0 && 32 % (THREADS / ROWS) == 0,
              "ROWS above 1 needs CLUSTER=1 and 1, 2, 4, 8, 16 or 32 threads per row");
static_assert(PACKS <= 8, "PACKS must be at most 8: two rows of 8 packs take 64 registers");

constexpr int lanes = THREADS / ROWS;                             // threads of a row in a block
constexpr int members = CLUSTER * lanes;                          // threads of a row
constexpr int edges = (2 * width - 2 + members - 1) / members;    // columns outside, of a thread

// What a column adds to dot.
__device__ __forceinline__ float product(float y, float dy) { return LOG ? dy : y * dy; }

// dx of a column, for a scale of 1.
__device__ __forceinline__ float gradient(float y, float dy, float dot)
{
    return LOG ? dy - fast_exp(y) * dot : y * (dy - dot);
}

// Bytes from the 16-byte boundary at or before an address to the address.
__device__ __forceinline__ int phase(const T* address) { return (unsigned long long)address % 16; }

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, RESIDENT)
softmax_backward_any_row(const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx,
                         int rows, int cols, float scale)
{
    __shared__ alignas(8) float2 messages[senders];         // what every warp of the row found
    __shared__ alignas(8) unsigned long long all_arrived;  // an mbarrier that counts their bytes
    const int rank = blockIdx.x % CLUSTER;
    const int member = rank * lanes + threadIdx.x % lanes;

    if (CLUSTER > 1) announce_block(&all_arrived, 8 * senders);

    // ---- load -----------------------------------------------------------------------------------
    // Head, body and tail as in 11_any_row.cu. Lanes past the last row take part in the shuffles,
    // as for an empty row.
    const long long row = blockIdx.x / CLUSTER * (long long)ROWS + threadIdx.x / lanes;
    const int count = ROWS == 1 || row < rows ? cols : 0;
    const T* from = y + row * cols;
    const T* from_d = dy + row * cols;
    T* to = dx + row * cols;
    const bool alike = phase(from) == phase(from_d) && phase(from) == phase(to);
    const int head = alike ? min(count, (16 - phase(from)) % 16 / (int)sizeof(T)) : 0;
    const int packs = alike ? min((count - head) / width, members * PACKS) : 0;
    const uint4* body = reinterpret_cast<const uint4*>(from + head);
    const uint4* body_d = reinterpret_cast<const uint4*>(from_d + head);
    Pack v[PACKS], d[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = member + k * members;
        if (pack < packs) {
            v[k].bits = load_once<EVICT_LAST>(body + pack);
            d[k].bits = load_once<EVICT_LAST>(body_d + pack);
        } else {
            v[k].bits = d[k].bits = make_uint4(0, 0, 0, 0);
        }
    }

    // The columns outside are dealt to the threads too. A thread keeps `edges` of them. Others, of
    // a row longer than the packs hold or of arrays that are not alike, are read again later.
    const unsigned outside = count - packs * width;
    const bool ragged = edges == 1 || outside > 0;  // else no code for them is run
    const auto column = [&](unsigned i) { return i + (i < head ? 0 : packs * width); };
    float v_end[edges], d_end[edges];
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) {
            const unsigned number = member + i * members;
            v_end[i] = number < outside ? to_float(from[column(number)]) : 0.0f;
            d_end[i] = number < outside ? to_float(from_d[column(number)]) : 0.0f;
        }

    // ---- reduce ---------------------------------------------------------------------------------
    float dot = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            const float2 s = to_float2(v[k].columns[c]), g = to_float2(d[k].columns[c]);
            dot += product(s.x, g.x) + product(s.y, g.y);
        }
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) dot += product(v_end[i], d_end[i]);
    for (unsigned number = member + edges * members; number < outside; number += members)
        dot += product(to_float(from[column(number)]), to_float(from_d[column(number)]));

    // ---- exchange: as in 08_cluster.cu, one sum -------------------------------------------------
    dot = warp_sum<lanes < 32 ? lanes : 32>(dot);
    if (ROWS == 1 && senders > 1) {
        const int lane = threadIdx.x % 32;
        exchange(make_float2(dot, 0.0f), messages, &all_arrived, rank, threadIdx.x / 32, lane);
        dot = 0.0f;
#pragma unroll
        for (int i = lane; i < senders; i += 32) dot += messages[i].x;
        dot = warp_sum(dot);
    }

    // ---- write ----------------------------------------------------------------------------------
    const unsigned zero = rows < 0;  // 0, but the compiler cannot know
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        if (sizeof(T) == 2) forget(v[k].bits, zero), forget(d[k].bits, zero);
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            const float2 s = to_float2(v[k].columns[c]), g = to_float2(d[k].columns[c]);
            d[k].columns[c] = to_T2(make_float2(scale * gradient(s.x, g.x, dot),
                                                scale * gradient(s.y, g.y, dot)));
        }
        const int pack = member + k * members;
        if (pack < packs) reinterpret_cast<uint4*>(to + head)[pack] = d[k].bits;
    }
    if (ragged)
#pragma unroll
        for (int i = 0; i < edges; ++i) {
            const unsigned number = member + i * members;
            const float q = scale * gradient(v_end[i], d_end[i], dot);
            if (number < outside) to[column(number)] = to_T(q);
        }
    for (unsigned number = member + edges * members; number < outside; number += members) {
        const float s = to_float(from[column(number)]), g = to_float(from_d[column(number)]);
        to[column(number)] = to_T(scale * gradient(s, g, dot));
    }
}

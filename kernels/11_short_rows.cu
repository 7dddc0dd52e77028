// SPDX-License-Identifier: MIT
// Idea:     short unaligned rows: a warp moves a run of rows in packs, which may hold columns of
//           several rows, through its own part of shared memory, and reads each row there by words.
// Row:      LANES lanes of a warp
// Build:    words      = row / 4
//           large      = rows * row > l2
//           of_lane    = 15 when large == 1
//                      | 20
//           LANES      = min(32, max(2, power_of_two(ceil_div(words, of_lane))))
//           ITEMS      = max(1, ceil_div(words, LANES))
//           bytes      = 3072 when large == 1 && size == 2
//                      | 2048
//           DENSE      = x_stride == cols && y_stride == cols
//           RUN        = 64 / LANES when DENSE == 0
//                      | max(32 / LANES, power_of_two(ceil_div(bytes, row)))
//           pitch      = RUN * row / 16 + 2 when DENSE == 1
//                      | row / 16 + 2
//           apart      = words when DENSE == 1
//                      | 4 * pitch
//           TURN       = ITEMS >= 32 / LANES && LANES < 16 && (apart + 2) % 32 <= 4
//           MOVES      = ceil_div(pitch, 32) when DENSE == 1
//                      | ceil_div(pitch, LANES)
//           EVICT_LAST = 4 * rows * row > 5 * l2 && capability >= 80
// Launch:   block = 128, block == 128, grid = ceil_div(rows, 4 * RUN)
// Shared:   64 * pitch * (DENSE + RUN * (1 - DENSE))
// Columns:  row / 4 <= LANES * ITEMS && ITEMS <= 20
//           && (DENSE == 0 && pitch <= MOVES * LANES
//               || x_stride == cols && y_stride == cols && pitch <= MOVES * 32)
// Align:    size
// Strides:  x_stride, y_stride
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   every column is written to shared memory and read from it twice; of rows with a gap
//           between them sectors are written in part.
// Measured: 4307 GB/s, 1.00 of a copy at 523264 x 513 (H200, 2026-11-28)
//
// y[row] = softmax(x[row]); row r of x begins at x + r * x_stride, of y at y + r * y_stride, with
// any alignment. y must not overlap x; memory between rows is neither read nor written. A row of
// all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. Measured with -ftz=true, as CuPy
// compiles.

#if !defined(LANES) || !defined(ITEMS) || !defined(TURN) || !defined(RUN) || !defined(DENSE) \
    || !defined(MOVES) || !defined(EVICT_LAST)
#error "compile with all macros of the Build table: -DLANES=8 -DITEMS=10 -DTURN=0 -DRUN=8 \
-DDENSE=1 -DMOVES=5 -DEVICT_LAST=0"
#endif

#include "include/cache_hints.cuh"
#include "include/reductions.cuh"
#include "include/unaligned.cuh"

// Word: the columns in 4 bytes, their conversion to floats and back, and the larger columns of two
// words.
#if defined(FLOAT16) || defined(BFLOAT16)
using Word = T2;
__device__ __forceinline__ float2 to_floats(Word v) { return to_float2(v); }
__device__ __forceinline__ Word to_word(float2 v) { return to_T2(v); }
__device__ __forceinline__ Word larger(Word a, Word b) { return max2(a, b); }
#else
using Word = float;
__device__ __forceinline__ float2 to_floats(Word v)
{
    return make_float2(v, minus_inf());  // one column, and none
}
__device__ __forceinline__ Word to_word(float2 v) { return v.x; }
__device__ __forceinline__ Word larger(Word a, Word b) { return fmaxf(a, b); }
#endif

static_assert(LANES >= 2 && LANES <= 32 && (LANES & (LANES - 1)) == 0,
              "LANES must be a power of two up to 32");
static_assert(ITEMS >= 1 && MOVES >= 1, "ITEMS and MOVES must be at least 1");
static_assert(RUN >= 1 && RUN % (32 / LANES) == 0, "RUN must be a multiple of 32 / LANES");
static_assert(TURN == 0 || TURN == 1 && ITEMS >= 32 / LANES, "TURN must be 1 (yes) or 0 (no)");
static_assert(DENSE == 0 || DENSE == 1, "DENSE must be 1 (yes) or 0 (no)");

constexpr int in_word = 4 / sizeof(T);        // columns of a word
constexpr int warp_rows = 32 / LANES;          // rows that a warp processes at the same time
// A stretch is contiguous memory: a run of rows moved by 32 lanes if DENSE, else a row moved by its
// LANES lanes.
constexpr int movers = DENSE ? 32 : LANES;
constexpr int stretches = DENSE ? 1 : RUN / warp_rows;  // of a mover
constexpr int edges = (2 * width + movers - 1) / movers;

// ---- stretches of memory ------------------------------------------------------------------------

// Columns between the 16-byte boundary before an address and the address.
__device__ __forceinline__ int offset(const T* address)
{
    return (unsigned long long)address % 16 / sizeof(T);
}

// `count` columns, the first of them `before` columns past a 16-byte boundary: the packs from
// `begin` to before `end`, and columns of a first and a last pack that contain others too.
struct Span {
    int before, count;
    __device__ Span(const T* address, int count) : before(offset(address)), count(count) {}
    __device__ int begin() const { return (before + width - 1) / width; }
    __device__ int end() const { return (before + count) / width; }
    __device__ bool ragged() const { return before > 0 || count % width > 0; }
    // The number of column e of the first pack (e < width) or of the last, counted from the first
    // pack on, if such a pack contains other columns too, else -1.
    __device__ int index(int e) const
    {
        const int last = (before + count - 1) / width;
        if (e < width) return begin() > 0 || end() == 0 ? e : -1;
        return end() == last && last > 0 ? last * width + e - width : -1;
    }
};

// Moves a lane's part of its stretches to shared memory, with the same alignment relative to 16
// bytes: whole packs, and by element the columns at the edges. All loads come first.
__device__ __forceinline__ void fetch(uint4* slots, int pitch, const T* from, long long stride,
                                      int count, int first, int rows_end, int mover)
{
    uint4 bits[stretches][MOVES];
    T columns[stretches][edges];
#pragma unroll
    for (int s = 0; s < stretches; ++s) {
        const int r = first + s * warp_rows;
        const T* start = from + r * stride;
        const Span span(start, r < rows_end ? count : 0);
        const uint4* packs = reinterpret_cast<const uint4*>(start - span.before);
#pragma unroll
        for (int m = 0; m < MOVES; ++m) {
            const int pack = mover + m * movers;
            if (pack >= span.begin() && pack < span.end())
                bits[s][m] = load_once<EVICT_LAST>(packs + pack);
        }
        if (span.ragged())
#pragma unroll
            for (int j = 0; j < edges; ++j) {
                const int column = span.index(mover + j * movers) - span.before;
                columns[s][j] = column >= 0 && column < span.count ? start[column] : to_T(0.0f);
            }
    }
#pragma unroll
    for (int s = 0; s < stretches; ++s) {
        const int r = first + s * warp_rows;
        const Span span(from + r * stride, r < rows_end ? count : 0);
        uint4* slot = slots + r * pitch;
#pragma unroll
        for (int m = 0; m < MOVES; ++m) {
            const int pack = mover + m * movers;
            if (pack >= span.begin() && pack < span.end()) slot[pack] = bits[s][m];
        }
        if (span.ragged())
#pragma unroll
            for (int j = 0; j < edges; ++j) {
                const int e = mover + j * movers, index = e < 2 * width ? span.index(e) : -1;
                if (index >= 0 && span.count > 0) reinterpret_cast<T*>(slot)[index] = columns[s][j];
            }
    }
}

// Moves them to y, whose alignment may be different.
__device__ __forceinline__ void put(T* to, long long to_stride, const uint4* slots, int pitch,
                                    const T* from, long long stride, int count, int first,
                                    int rows_end, int mover)
{
#pragma unroll
    for (int s = 0; s < stretches; ++s) {
        const int r = first + s * warp_rows;
        T* start = to + r * to_stride;
        const Span span(start, r < rows_end ? count : 0);
        const int shift = offset(from + r * stride) - span.before;  // from y to the slot
        const int skip = (shift + width) % width;
        uint4* packs = reinterpret_cast<uint4*>(start - span.before);
        const uint4* slot = slots + r * pitch;
#pragma unroll
        for (int m = 0; m < MOVES; ++m) {
            const int pack = mover + m * movers;
            if (pack >= span.begin() && pack < span.end()) {
                const uint4* bits = slot + (pack * width + shift) / width;
                packs[pack] = skip ? sixteen_bytes_at(bits[0], bits[1], skip) : bits[0];
            }
        }
        if (span.ragged())
#pragma unroll
            for (int j = 0; j < edges; ++j) {
                const int e = mover + j * movers, index = e < 2 * width ? span.index(e) : -1;
                const int column = index - span.before;
                if (index >= 0 && column >= 0 && column < span.count)
                    start[column] = reinterpret_cast<const T*>(slot)[index + shift];
            }
    }
}

// ---- the kernel ---------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(128)
softmax_short_rows(const T* __restrict__ x, T* __restrict__ y, int rows, int cols,
                   long long x_stride, long long y_stride)
{
    extern __shared__ uint4 pieces[];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % LANES;
    const int group = threadIdx.x % 32 / LANES;
    const int mover = threadIdx.x % movers;
    const long long first = (blockIdx.x * 4LL + warp) * RUN;
    const int run = (int)max(0LL, min((long long)RUN, rows - first));
    const T* from = x + first * x_stride;
    T* to = y + first * y_stride;
    // Packs of a stretch's slot, for any alignment; the table's is one more for whole packs.
    const int pitch = ((DENSE ? RUN : 1) * cols + 2 * width - 1) / width;
    uint4* slots = pieces + warp * (DENSE ? 1 : RUN) * pitch;
    const int count = DENSE ? run * cols : cols;  // columns of a stretch
    const int first_row = DENSE ? 0 : group, rows_end = DENSE ? min(run, 1) : run;

    // ---- load: a run of rows into shared memory -------------------------------------------------
    fetch(slots, pitch, from, x_stride, count, first_row, rows_end, mover);
    __syncwarp();

    // ---- reduce and exchange: LANES lanes a row, by words and, at its ends, by element ----------
    const Word no_word = to_word(make_float2(minus_inf(), minus_inf()));
#pragma unroll 2
    for (int round = 0; round < RUN; round += warp_rows) {
        const int r = round + group;
        const int start = DENSE ? offset(from) + r * cols : offset(from + r * x_stride);
        T* row = reinterpret_cast<T*>(DENSE ? slots : slots + r * pitch) + start;
        const int head = r < run ? start % in_word : 0;
        const int words = r < run ? (cols - head) / in_word : 0;
        Word* body = reinterpret_cast<Word*>(row + head);
        const int end = lane == 0 ? 0 : cols - 1;
        const bool has_end = in_word > 1 && r < run
                           && (lane == 0 ? head : lane == 1 && head + words * in_word < cols);

        Word v[ITEMS];
        float v_end = has_end ? to_float(row[end]) : minus_inf();
        Word largest = no_word;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            // TURN: rows whose words are in the same banks start with different words.
            const int item = i + (TURN ? group : 0);
            const int word = lane + (item < ITEMS ? item : item - ITEMS) * LANES;
            v[i] = no_word;
            if (word < words) v[i] = body[word];
            largest = larger(largest, v[i]);
        }
        const float2 both = to_floats(largest);
        const float row_max = warp_max<LANES>(fmaxf(fmaxf(lowest, v_end), fmaxf(both.x, both.y)));

        float2 e[ITEMS];
        v_end = fast_exp(v_end - row_max);
        float sum = v_end;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const float2 two = to_floats(v[i]);
            e[i].x = fast_exp(two.x - row_max);
            e[i].y = in_word > 1 ? fast_exp(two.y - row_max) : 0.0f;
            sum += e[i].x + e[i].y;
        }
        const float scale = 1.0f / warp_sum<LANES>(sum);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int item = i + (TURN ? group : 0);
            const int word = lane + (item < ITEMS ? item : item - ITEMS) * LANES;
            if (word < words) body[word] = to_word(make_float2(e[i].x * scale, e[i].y * scale));
        }
        if (has_end) row[end] = to_T(v_end * scale);
    }
    __syncwarp();

    // ---- write: the run out of shared memory ----------------------------------------------------
    put(to, y_stride, slots, pitch, from, x_stride, count, first_row, rows_end, mover);
}

// SPDX-License-Identifier: MIT
// Idea:     07_warp.cu with one innocent line: a skipped load leaves its pack undefined, and the
//           compiler lets it keep what the load before gave, and so each load waits for that one.
// Row:      LANES lanes of a warp
// Build:    WIDTH = 16 / size when row % 16 == 0
//                 | 4 when cols % 4 == 0
//                 | 2 when cols % 2 == 0
//                 | 1
//           LANES = min(32, power_of_two(ceil_div(cols, WIDTH)))
//           PACKS = ceil_div(cols, WIDTH * LANES)
//           ROWS  = 1
// Launch:   block = 128, block == 128, grid = ceil_div(rows, 128 / LANES * ROWS)
// Shared:   0
// Columns:  cols >= 1 && cols <= 1024 && cols % WIDTH == 0 && cols <= WIDTH * LANES * PACKS
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   the time of a load for each pack but one.
// Measured: 3969 GB/s, 0.92 of a copy at 262144 x 1024 (H200, 2026-11-21)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. Measured with
// -ftz=true, as CuPy compiles.

#if !defined(WIDTH) || !defined(LANES) || !defined(PACKS) || !defined(ROWS)
#error "compile with all macros of the Build table: -DWIDTH=4 -DLANES=32 -DPACKS=2 -DROWS=1"
#endif

#include "../include/formats.cuh"
#include "../include/reductions.cuh"

static_assert(WIDTH >= 1 && (WIDTH & (WIDTH - 1)) == 0 && WIDTH * sizeof(T) <= 16,
              "WIDTH columns are one access: 1, 2 or 4, or 8 if each has 2 bytes");
static_assert(LANES >= 1 && LANES <= 32 && (LANES & (LANES - 1)) == 0,
              "LANES must be a power of two up to 32");
static_assert(PACKS >= 1 && ROWS >= 1, "a lane has at least one pack of at least one row");

// Neighbouring columns that one access moves: 2 to 16 bytes.
struct alignas(WIDTH * sizeof(T)) Pack {
    T column[WIDTH];
};

extern "C" __global__ void __launch_bounds__(128)
softmax_waiting_loads(const T* __restrict__ x, T* __restrict__ y, int rows, int cols)
{
    constexpr int together = 32 / LANES;  // rows that a warp loads with one instruction
    const int lane = threadIdx.x % LANES;
    const int first = (blockIdx.x * 4 + threadIdx.x / 32) * together * ROWS
                    + threadIdx.x % 32 / LANES;
    const int packs = cols / WIDTH;

    // ---- load -----------------------------------------------------------------------------------
    // Load all rows of this thread before using any, as it seems. Lanes past the end of a row, or
    // past the last row, take part in the shuffles with -inf.
    float v[ROWS][PACKS][WIDTH];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const long long row = first + r * together;
        const Pack* from = reinterpret_cast<const Pack*>(x + row * cols);
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int pack = lane + k * LANES;
            Pack loaded;
            if (row < rows && pack < packs) loaded = from[pack];
#pragma unroll
            for (int c = 0; c < WIDTH; ++c)
                v[r][k][c] = row < rows && pack < packs ? float(loaded.column[c]) : minus_inf();
        }
    }

    // ---- reduce, exchange, write: row by row ----------------------------------------------------
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float largest = lowest;
#pragma unroll
        for (int k = 0; k < PACKS; ++k)
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) largest = fmaxf(largest, v[r][k][c]);
        const float row_max = warp_max<LANES>(largest);

        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < PACKS; ++k)
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) {
                v[r][k][c] = fast_exp(v[r][k][c] - row_max);
                sum += v[r][k][c];
            }
        const float scale = 1.0f / warp_sum<LANES>(sum);

        const long long row = first + r * together;
        Pack* to = reinterpret_cast<Pack*>(y + row * cols);
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int pack = lane + k * LANES;
            Pack result;
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) result.column[c] = T(v[r][k][c] * scale);
            if (row < rows && pack < packs) to[pack] = result;
        }
    }
}

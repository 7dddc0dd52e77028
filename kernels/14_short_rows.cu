// SPDX-License-Identifier: MIT
// Idea:     the gradient of short rows: a warp copies a run of rows to shared memory in packs, which
//           may hold columns of several rows, and reads each row there column by column.
// Computes: softmax_backward
// Row:      LANES lanes of a warp
// Build:    LOG   = 0
//           LANES = min(32, max(4, power_of_two(ceil_div(cols, 16))))
//           RUN   = max(32 / LANES, power_of_two(ceil_div(1024, row)))
//           pitch = ceil_div(RUN * row, 16) + 1
// Launch:   block = 128, block == 128, grid = ceil_div(rows, 4 * RUN)
// Shared:   128 * pitch
// Columns:  cols >= 1 && ceil_div(RUN * row, 16) + 1 <= pitch
// Align:    size
// Dtype:    float32, float16, bfloat16
// Arch:     sm_80
// Reads:    2 reads + 1 write
// Wastes:   every column is written to shared memory and read from it twice.
// Measured: not yet
//
// dx is that of 14_any_row.cu, for the same arguments.

#if !defined(LOG) || !defined(LANES) || !defined(RUN)
#error "compile with all macros of the Build table: -DLOG=0 -DLANES=8 -DRUN=16"
#endif

#include "include/packs.cuh"
#include "include/reductions.cuh"

static_assert(LOG == 0 || LOG == 1, "LOG is yes, 1, or no, 0");
static_assert(LANES >= 1 && LANES <= 32 && (LANES & (LANES - 1)) == 0,
              "LANES is a power of two: the lanes of a row start at its multiples");
static_assert(RUN >= 1 && RUN % (32 / LANES) == 0, "a round is 32 / LANES rows");

// Columns from the 16-byte boundary before an address to the address.
__device__ __forceinline__ int phase(const T* address)
{
    return (unsigned long long)address % 16 / sizeof(T);
}

// A stretch of memory: columns up to its first 16-byte boundary, packs, and columns after these.
struct Stretch {
    int head, packs, ends;
    __device__ Stretch(const T* start, int count)
        : head(min(count, (width - phase(start)) % width)),
          packs((count - head) / width), ends(count - packs * width) {}
    __device__ int end(int number) const { return number + (number < head ? 0 : packs * width); }
};

// Copies columns to a slot of shared memory that is aligned like them, by all lanes of a warp.
__device__ __forceinline__ void fetch(T* slot, const T* from, int count)
{
    const int lane = threadIdx.x % 32;
    const Stretch stretch(from, count);
    for (int pack = lane; pack < stretch.packs; pack += 32) {
        const int column = stretch.head + pack * width;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     ::"r"((unsigned)__cvta_generic_to_shared(slot + column)), "l"(from + column)
                     : "memory");
    }
    if (lane < stretch.ends) slot[stretch.end(lane)] = from[stretch.end(lane)];
}

// Copies a slot to columns that may be aligned differently.
__device__ __forceinline__ void put(T* to, const T* slot, int phase_of_slot, int count)
{
    const int lane = threadIdx.x % 32;
    const Stretch stretch(to, count);
    if (phase(to) != phase_of_slot) {
        for (int column = lane; column < count; column += 32) to[column] = slot[column];
        return;
    }
    for (int pack = lane; pack < stretch.packs; pack += 32) {
        const int column = stretch.head + pack * width;
        *reinterpret_cast<uint4*>(to + column) = *reinterpret_cast<const uint4*>(slot + column);
    }
    if (lane < stretch.ends) to[stretch.end(lane)] = slot[stretch.end(lane)];
}

extern "C" __global__ void __launch_bounds__(128)
softmax_backward_short_rows(const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx,
                            int rows, int cols, float scale)
{
    extern __shared__ uint4 memory[];
    const long long first = (blockIdx.x * 4LL + threadIdx.x / 32) * RUN;
    const int run = (int)max(0LL, min((long long)RUN, rows - first));
    const T* from = y + first * cols;
    const T* from_d = dy + first * cols;
    const int pitch = (RUN * cols + width - 1) / width + 1;  // packs, for any alignment
    uint4* mine = memory + threadIdx.x / 32 * 2 * pitch;
    T* slot = reinterpret_cast<T*>(mine) + phase(from);
    T* slot_d = reinterpret_cast<T*>(mine + pitch) + phase(from_d);
    fetch(slot, from, run * cols);
    fetch(slot_d, from_d, run * cols);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();

    const int lane = threadIdx.x % LANES;
    for (int round = 0; round < RUN; round += 32 / LANES) {
        const int r = round + threadIdx.x % 32 / LANES;
        const int count = r < run ? cols : 0;
        const T* v = slot + r * cols;
        T* d = slot_d + r * cols;
        float dot = 0.0f;
#pragma unroll 4
        for (int c = lane; c < count; c += LANES)
            dot += LOG ? to_float(d[c]) : to_float(v[c]) * to_float(d[c]);
        dot = warp_sum<LANES>(dot);
#pragma unroll 4
        for (int c = lane; c < count; c += LANES) {
            const float s = to_float(v[c]), g = to_float(d[c]);
            d[c] = to_T(scale * (LOG ? g - fast_exp(s) * dot : s * (g - dot)));
        }
    }
    __syncwarp();
    put(dx + first * cols, slot_d, phase(from_d), run * cols);
}

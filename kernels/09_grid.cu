// SPDX-License-Identifier: MIT
// Idea:     many blocks of one launch share a row, more than a cluster can hold; they agree by
//           letters in global memory, where one 8-byte store is both the data and the signal.
// Row:      BLOCKS blocks
// Build:    few_packs = 11 when rows > 1
//                     | 8 when cols > 1048576
//                     | size
//           THREADS   = 512 when rows == 1 && ceil_div(row / 16, 512 * few_packs) <= sms
//                     | 384
//           most      = 32 when size == 4
//                     | 16
//           few       = ceil_div(row / 16, few_packs * THREADS)
//           BLOCKS    = few when rows * few <= sms
//                     | ceil_div(row / 16, most * THREADS)
//           PACKS     = ceil_div(row / 16, BLOCKS * THREADS)
//           PROGRAMMATIC = 1 when rows <= 16
//                        | 0
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
// Wastes:   a letter takes longer than the bytes of 32000 columns; of many long rows, each waits
//           for its letters while its multiprocessors load nothing.
// Measured: 5.70 us, 0.65 of a copy, at 1 x 1048576 (NVIDIA H200, 2026-11-21)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. The workspace must hold
// zeros before the first launch; every launch leaves zeros behind.

#ifndef BLOCKS
#error "compile with the macros of the Build line above: -DTHREADS=512 -DBLOCKS=128 -DPACKS=4 ..."
#endif

// Two columns, and how they become floats and back.
#if defined(FLOAT16)
#include <cuda_fp16.h>
using T = __half;
using Pair = __half2;
__device__ __forceinline__ float2 widen(Pair pair) { return __half22float2(pair); }
__device__ __forceinline__ Pair narrow(float2 pair) { return __float22half2_rn(pair); }
#elif defined(BFLOAT16)
#include <cuda_bf16.h>
using T = __nv_bfloat16;
using Pair = __nv_bfloat162;
__device__ __forceinline__ float2 widen(Pair pair) { return __bfloat1622float2(pair); }
__device__ __forceinline__ Pair narrow(float2 pair) { return __float22bfloat162_rn(pair); }
#else
using T = float;
using Pair = float2;
__device__ __forceinline__ float2 widen(Pair pair) { return pair; }
__device__ __forceinline__ Pair narrow(float2 pair) { return pair; }
#endif

constexpr int pairs = 16 / sizeof(Pair);
constexpr int warps = THREADS / 32;

// 16 bytes: one access.
union Pack {
    uint4 bits;
    Pair pair[pairs];
    __device__ Pack() {}
};

// The largest of 32 lanes' values, in every lane.
__device__ __forceinline__ float warp_max(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
    return value;
}

// The sum of 32 lanes' values, in every lane.
__device__ __forceinline__ float warp_sum(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffff, value, distance);
    return value;
}

using Letter = unsigned long long;  // the bits of sum and of max; no pair has the bits 0

__device__ __forceinline__ Letter letter_of(float max, float sum)
{
    return (Letter)__float_as_uint(sum) << 32 | __float_as_uint(max);
}
__device__ __forceinline__ float max_of(Letter letter) { return __uint_as_float((unsigned)letter); }
__device__ __forceinline__ float sum_of(Letter letter) { return __uint_as_float(letter >> 32); }

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_grid(const T* __restrict__ x, T* __restrict__ y, int rows, int cols, Letter* workspace)
{
    __shared__ float maxima[warps];
    __shared__ float sums[warps];
    __shared__ float2 row_pair;
    const int member = blockIdx.x % BLOCKS;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int packs = cols / (2 * pairs);
    const float minus_inf = __int_as_float(0xff800000);
    const float log2e = 1.44269504f;
    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu

    // After a programmatic launch this grid starts while the previous one still runs; it must not
    // read x before that one is done.
    if (PROGRAMMATIC) {
        asm volatile("griddepcontrol.launch_dependents;");
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }

    for (int row = blockIdx.x / BLOCKS; row < rows; row += gridDim.x / BLOCKS) {
        const uint4* from = reinterpret_cast<const uint4*>(x + (long long)row * cols);
        uint4* to = reinterpret_cast<uint4*>(y + (long long)row * cols);
        float2 v[PACKS][pairs];
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int pack = (k * BLOCKS + member) * THREADS + threadIdx.x;
            if (pack < packs) {
                Pack loaded;
                loaded.bits = __ldcs(from + pack);
#pragma unroll
                for (int p = 0; p < pairs; ++p) v[k][p] = widen(loaded.pair[p]);
            } else {
#pragma unroll
                for (int p = 0; p < pairs; ++p) v[k][p] = make_float2(minus_inf, minus_inf);
            }
        }

        float thread_max = lowest;
#pragma unroll
        for (int k = 0; k < PACKS; ++k)
#pragma unroll
            for (int p = 0; p < pairs; ++p)
                thread_max = fmaxf(thread_max, fmaxf(v[k][p].x, v[k][p].y));

        // As in 08_cluster.cu: shift = max * log2(e), unless the columns are very large.
        const bool far = fabsf(thread_max) >= 536870912.0f;
        const float shift = far ? thread_max + copysignf(268435456.0f, thread_max)
                                : __fmul_rn(thread_max, log2e);
        const float slope = far ? 1.0f : log2e, origin = far ? thread_max : shift;
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < PACKS; ++k)
#pragma unroll
            for (int p = 0; p < pairs; ++p) {
                v[k][p].x = exp2f(fmaf(v[k][p].x, slope, -origin));
                v[k][p].y = exp2f(fmaf(v[k][p].y, slope, -origin));
                sum += v[k][p].x + v[k][p].y;
            }
        const float warp_shift = warp_max(shift);
        sum = warp_sum(sum * exp2f(shift - warp_shift));
        if (lane == 0) {
            maxima[warp] = warp_shift;
            sums[warp] = sum;
        }
        __syncthreads();

        // One warp writes this block's letter into the box of every block. These boxes serve no
        // other row, so nothing has to be waited for before writing.
        if (warp == 0) {
            Letter* boxes = workspace + (long long)row * BLOCKS * BLOCKS;
            const float block_shift = warp_max(lane < warps ? maxima[lane] : lowest);
            const float block_sum =
                warp_sum(lane < warps ? sums[lane] * exp2f(maxima[lane] - block_shift) : 0.0f);
            const Letter letter = letter_of(block_shift, block_sum);
            for (int to_block = lane; to_block < BLOCKS; to_block += 32)
                asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::
                                 "l"(boxes + to_block * BLOCKS + member), "l"(letter)
                             : "memory");

            // It reads this block's box until all letters are there, empties it for the next
            // launch, and merges them. If all warps looked, their loads would hold up the letters.
            Letter* own_box = boxes + member * BLOCKS;
            constexpr int rounds = (BLOCKS + 31) / 32;
            Letter letters[rounds];
            for (bool waits = true; waits;) {
                waits = false;
#pragma unroll
                for (int i = 0; i < rounds; ++i) {
                    letters[i] = letter_of(lowest, 0.0f);  // of a block that does not exist
                    if (lane + 32 * i < BLOCKS)
                        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(letters[i])
                                     : "l"(own_box + lane + 32 * i) : "memory");
                }
#pragma unroll
                for (int i = 0; i < rounds; ++i) waits = waits || !letters[i];
            }
            __syncwarp();
            float row_shift = lowest;
#pragma unroll
            for (int i = 0; i < rounds; ++i) {
                if (lane + 32 * i < BLOCKS) own_box[lane + 32 * i] = 0;
                row_shift = fmaxf(row_shift, max_of(letters[i]));
            }
            row_shift = warp_max(row_shift);
            float row_sum = 0.0f;
#pragma unroll
            for (int i = 0; i < rounds; ++i)
                row_sum += sum_of(letters[i]) * exp2f(max_of(letters[i]) - row_shift);
            row_sum = warp_sum(row_sum);
            if (lane == 0) row_pair = make_float2(row_shift, row_sum);
        }
        __syncthreads();
        const float scale = exp2f(shift - row_pair.x) / row_pair.y;

#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int pack = (k * BLOCKS + member) * THREADS + threadIdx.x;
            Pack result;
#pragma unroll
            for (int p = 0; p < pairs; ++p)
                result.pair[p] = narrow(make_float2(v[k][p].x * scale, v[k][p].y * scale));
            if (pack < packs) __stcs(to + pack, result.bits);
        }
    }
}

// SPDX-License-Identifier: MIT
// Idea:     09_grid.cu, but the next row is on its way while this one is reduced, exchanged and
//           written: asynchronous copies into shared memory need no registers until they are there.
// Row:      BLOCKS blocks
// Build:    THREADS = 384, BLOCKS = (cols * size / 16 + 12287) / 12288,
//           SHARE = (cols * size / 16 + 8 * BLOCKS - 1) / (8 * BLOCKS) * 8,
//           PACKS = (SHARE + THREADS - 1) / THREADS,
//           FULL = max(0, cols * size / 16 - (BLOCKS - 1) * SHARE) / THREADS
// Launch:   block = THREADS, block == THREADS,
//           grid = min(rows, MULTIPROCESSORS / BLOCKS) * BLOCKS, cooperative
// Shared:   16 * THREADS * PACKS
// Workspace: 8 * rows * BLOCKS * BLOCKS
// Columns:  cols * size % 16 == 0 && cols * size >= 32768 && BLOCKS <= MULTIPROCESSORS
//           && cols * size <= 16 * BLOCKS * SHARE && cols * size > 16 * (BLOCKS - 1) * SHARE
//           && cols * size >= 16 * ((BLOCKS - 1) * SHARE + FULL * THREADS)
//           && SHARE <= THREADS * PACKS && THREADS * PACKS <= 14080
// Align:    16
// Dtype:    float32, float16, bfloat16
// Arch:     sm_90
// Reads:    1 read + 1 write
// Wastes:   of few rows there is no next one, and multiprocessors stay idle that 09_grid.cu uses;
//           16-bit exponentials are computed twice, for lack of registers to keep them.
// Measured: before an edit, 3206 GB/s, 0.75 of a copy, at 256 x 1048576 (NVIDIA H200, 2026-11-21)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. The workspace must hold
// zeros before the first launch; every launch leaves zeros behind. More than 48 KB of shared memory
// must be allowed once: see cudaFuncSetAttribute.

#ifndef BLOCKS
#error "compile with the macros of the Build line above: -DTHREADS=384 -DBLOCKS=22 -DPACKS=32 ..."
#endif
#ifndef MULTIPROCESSORS
#define MULTIPROCESSORS 132  // of an H200: all blocks must run at once, one on each
#endif

// Two columns, how they become floats and back, and the larger of each.
#if defined(FLOAT16)
#include <cuda_fp16.h>
using T = __half;
using Pair = __half2;
__device__ __forceinline__ float2 widen(Pair pair) { return __half22float2(pair); }
__device__ __forceinline__ Pair narrow(float2 pair) { return __float22half2_rn(pair); }
__device__ __forceinline__ Pair larger(Pair a, Pair b) { return __hmax2(a, b); }
#elif defined(BFLOAT16)
#include <cuda_bf16.h>
using T = __nv_bfloat16;
using Pair = __nv_bfloat162;
__device__ __forceinline__ float2 widen(Pair pair) { return __bfloat1622float2(pair); }
__device__ __forceinline__ Pair narrow(float2 pair) { return __float22bfloat162_rn(pair); }
__device__ __forceinline__ Pair larger(Pair a, Pair b) { return __hmax2(a, b); }
#else
using T = float;
using Pair = float2;
__device__ __forceinline__ float2 widen(Pair pair) { return pair; }
__device__ __forceinline__ Pair narrow(float2 pair) { return pair; }
__device__ __forceinline__ Pair larger(Pair a, Pair b)
{
    return make_float2(fmaxf(a.x, b.x), fmaxf(a.y, b.y));
}
#endif

constexpr int pairs = 16 / sizeof(Pair);
constexpr int warps = THREADS / 32;
constexpr bool keep = sizeof(T) == 4;   // the exponentials, in the registers of their columns
constexpr float log2e = 1.44269504f;

// 16 bytes: one access.
union Pack {
    uint4 bits;
    Pair pair[pairs];
    __device__ Pack() {}
};

// 2 to the power of value, but 0 where that is below 2^-126: one instruction with any options.
__device__ __forceinline__ float power(float value)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

__device__ __forceinline__ float2 powers(Pair pair, float slope, float origin)
{
    const float2 v = widen(pair);
    return make_float2(power(fmaf(v.x, slope, -origin)), power(fmaf(v.y, slope, -origin)));
}

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

// Whether this thread has a pack k of its block's share: FULL of them in any case.
__device__ __forceinline__ bool has(int k, int share)
{
    return k < FULL || k * THREADS + (int)threadIdx.x < share;
}

// Starts the copies of this thread's packs of a row.
__device__ __forceinline__ void bring(uint4* own, const T* row, int first, int share)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(own);
    const uint4* from = reinterpret_cast<const uint4*>(row) + first;
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
        if (has(k, share))
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::
                             "r"(to + 16 * k * THREADS), "l"(from + k * THREADS)
                         : "memory");
}

using Letter = unsigned long long;  // the bits of sum and of max; no pair has the bits 0

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_ahead(const T* __restrict__ x, T* __restrict__ y, int rows, int cols, Letter* workspace)
{
    extern __shared__ uint4 cache[];  // this block's packs of the next row; a thread uses its own
    __shared__ float maxima[2][warps];  // of this row and of the one before
    __shared__ float sums[2][warps];
    const int member = blockIdx.x % BLOCKS;
    const int groups = gridDim.x / BLOCKS;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int first = member * SHARE + threadIdx.x;
    const int share = min(SHARE, cols / (2 * pairs) - member * SHARE);
    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu

    // Where no copy will ever arrive, there is -inf for all rows.
    uint4* own = cache + threadIdx.x;
    const float minus_inf = __int_as_float(0xff800000);
    Pack none;
#pragma unroll
    for (int p = 0; p < pairs; ++p) none.pair[p] = narrow(make_float2(minus_inf, minus_inf));
    for (int k = FULL; k < PACKS; ++k)
        if (!has(k, share)) own[k * THREADS] = none.bits;

    Letter* box_before = nullptr;  // this block's, of the row before
    int parity = 0;
    int row = blockIdx.x / BLOCKS;
    bring(own, x + (long long)row * cols, first, share);
    for (; row < rows; row += groups, parity ^= 1) {
        // Each thread waits for its own copies, takes them, and has the next row brought to where
        // they were. Without the two __syncwarp the compiler moves that behind the exponentials.
        asm volatile("cp.async.wait_all;" ::: "memory");
        Pack v[PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; ++k) v[k].bits = own[k * THREADS];
        __syncwarp();
        if (row + groups < rows) bring(own, x + (long long)(row + groups) * cols, first, share);
        __syncwarp();

        Pair largest = v[0].pair[0];
#pragma unroll
        for (int k = 0; k < PACKS; ++k)
#pragma unroll
            for (int p = 0; p < pairs; ++p) largest = larger(largest, v[k].pair[p]);
        const float2 both = widen(largest);
        const float thread_max = fmaxf(lowest, fmaxf(both.x, both.y));

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
                const float2 e = powers(v[k].pair[p], slope, origin);
                sum += e.x + e.y;
                if (keep) v[k].pair[p] = narrow(e);
            }
        const float warp_shift = warp_max(shift);
        sum = warp_sum(sum * power(shift - warp_shift));
        if (lane == 0) {
            maxima[parity][warp] = warp_shift;
            sums[parity][warp] = sum;
        }
        __syncthreads();  // and all warps have read their letters of the row before

        // Thread t writes this block's letter into block t's box. No other box of the workspace
        // serves this row, so nothing has to be waited for before writing. What has been read is
        // emptied for the next launch.
        Letter* boxes = workspace + (long long)row * BLOCKS * BLOCKS;
        Letter* own_box = boxes + member * BLOCKS;
        for (int to_block = threadIdx.x; to_block < BLOCKS; to_block += THREADS) {
            float block_shift = maxima[parity][0];
#pragma unroll
            for (int w = 1; w < warps; ++w) block_shift = fmaxf(block_shift, maxima[parity][w]);
            float block_sum = 0.0f;
#pragma unroll
            for (int w = 0; w < warps; ++w)
                block_sum += sums[parity][w] * power(maxima[parity][w] - block_shift);
            const Letter letter = (Letter)__float_as_uint(block_sum) << 32
                                | __float_as_uint(block_shift);
            asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::
                             "l"(boxes + to_block * BLOCKS + member), "l"(letter)
                         : "memory");
            if (box_before) box_before[to_block] = 0;
        }
        box_before = own_box;

        // Every warp reads the box until all letters are there, and merges them.
        constexpr int rounds = (BLOCKS + 31) / 32;
        float shifts[rounds], block_sums[rounds];
        float row_shift = lowest;
#pragma unroll
        for (int i = 0; i < rounds; ++i) {
            Letter letter = 0;
            shifts[i] = lowest;
            block_sums[i] = 0.0f;
            if (lane + 32 * i < BLOCKS) {
                while (!letter)
                    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(letter)
                                 : "l"(own_box + lane + 32 * i) : "memory");
                shifts[i] = __uint_as_float((unsigned)letter);
                block_sums[i] = __uint_as_float((unsigned)(letter >> 32));
            }
            row_shift = fmaxf(row_shift, shifts[i]);
        }
        row_shift = warp_max(row_shift);
        float row_sum = 0.0f;
#pragma unroll
        for (int i = 0; i < rounds; ++i) row_sum += block_sums[i] * power(shifts[i] - row_shift);
        const float scale = power(shift - row_shift) / warp_sum(row_sum);

        uint4* to = reinterpret_cast<uint4*>(y + (long long)row * cols) + first;
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            // Says that these may be new bits: else the compiler keeps them widened, and spills.
            uint4& bits = v[k].bits;
            if (!keep) asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
#pragma unroll
            for (int p = 0; p < pairs; ++p) {
                const float2 e = keep ? widen(v[k].pair[p]) : powers(v[k].pair[p], slope, origin);
                v[k].pair[p] = narrow(make_float2(e.x * scale, e.y * scale));
            }
            if (has(k, share)) __stcs(to + k * THREADS, bits);
        }
    }
    __syncthreads();  // as above, for the last row
    for (int sender = threadIdx.x; sender < BLOCKS; sender += THREADS) box_before[sender] = 0;
}

// SPDX-License-Identifier: MIT
// Idea:     fewer instructions per column: 16-bit columns are compared two at a time, and one
//           multiply-add feeds each exponential.
// Row:      LANES lanes of a warp
// Build:    LANES      = min(16, power_of_two(ceil_div(cols, 8))) when cols <= 256
//                      | 32
//           PACKS      = ceil_div(cols, 8 * LANES)
//           EVICT_LAST = 1 when 4 * rows * row > 5 * l2
//                      | 0 when 3 * rows * row > 2 * l2 || row < 512
//                      | 5 * rows * row > 2 * l2
//           STREAMING  = rows * row > 4 * l2 || 3 * rows * row > 2 * l2 && EVICT_LAST == 0
// Launch:   block = 128, block == 128, grid = ceil_div(rows, 128 / LANES)
// Shared:   0
// Columns:  cols >= 8 && cols <= 1024 && cols % 8 == 0 && cols <= 8 * LANES * PACKS
// Align:    16
// Dtype:    float16, bfloat16
// Arch:     sm_80
// Reads:    1 read + 1 write
// Wastes:   takes only rows of a multiple of 16 bytes.
// Measured: 4337 GB/s, 1.01 of a copy (best copy 1.01) at 8388608 x 32 bfloat16 (H200, 2026-11-21)
//
// y[row] = softmax(x[row]) for row-major x and y of shape (rows, cols). y must not overlap x.
// A row of all -inf, or one with NaN or +inf, gives NaN, as in PyTorch. Measured with
// -ftz=true, as CuPy compiles.

#if !defined(LANES) || !defined(PACKS) || !defined(EVICT_LAST) || !defined(STREAMING)
#error "compile with all macros of the Build table: -DLANES=32 -DPACKS=1 \
-DEVICT_LAST=0 -DSTREAMING=1"
#endif

// T2: two neighbouring columns, how they become floats and back, and the larger of each.
#if defined(BFLOAT16)
#include <cuda_bf16.h>
using T = __nv_bfloat16;
using T2 = __nv_bfloat162;
__device__ __forceinline__ float2 to_float2(T2 v) { return __bfloat1622float2(v); }
__device__ __forceinline__ T2 to_T2(float2 v) { return __float22bfloat162_rn(v); }
__device__ __forceinline__ T2 max2(T2 a, T2 b) { return __hmax2(a, b); }
#else
#include <cuda_fp16.h>
using T = __half;
using T2 = __half2;
__device__ __forceinline__ float2 to_float2(T2 v) { return __half22float2(v); }
__device__ __forceinline__ T2 to_T2(float2 v) { return __float22half2_rn(v); }
__device__ __forceinline__ T2 max2(T2 a, T2 b) { return __hmax2(a, b); }
#endif

static_assert(LANES >= 1 && LANES <= 32 && (LANES & (LANES - 1)) == 0,
              "LANES is a power of two: the rows of a warp begin at its multiples");
static_assert(PACKS >= 1, "a lane has at least one pack");
static_assert(EVICT_LAST == 0 || EVICT_LAST == 1, "EVICT_LAST is yes, 1, or no, 0");
static_assert(STREAMING == 0 || STREAMING == 1, "STREAMING is yes, 1, or no, 0");

constexpr int twos = 16 / sizeof(T2);  // of 16 bytes

// ---- 16 bytes -----------------------------------------------------------------------------------

// 16 bytes: one access.
union Pack {
    uint4 bits;
    T2 columns[twos];
    __device__ Pack() {}
};

// Stores 16 bytes: the caches let them go first if STREAMING, else as usual.
__device__ __forceinline__ void store(uint4* to, uint4 bits)
{
    if (STREAMING)
        __stcs(to, bits);
    else
        *to = bits;
}

// What asks the L2 to evict last what comes with it.
__device__ __forceinline__ unsigned long long evict_last_policy()
{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Loads 16 bytes that are read once, with the hint of 08_cluster.cu where x is large.
__device__ __forceinline__ uint4 load(const uint4* from, unsigned long long policy)
{
#if EVICT_LAST
    uint4 bits;
    asm volatile("ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(from), "l"(policy));
    return bits;
#else
    return STREAMING ? __ldcs(from) : *from;
#endif
}

// ---- exponentials and lanes ---------------------------------------------------------------------

// 2 to the power of value, but 0 where that is below 2^-126: one instruction with any options.
__device__ __forceinline__ float fast_exp2(float value)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

// The largest value of the lanes of a row, in each of them.
__device__ __forceinline__ float lanes_max(float value)
{
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
    return value;
}

// The sum over the lanes of a row, in each of them.
__device__ __forceinline__ float lanes_sum(float value)
{
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffff, value, distance);
    return value;
}

// ---- the kernel ---------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(128)
softmax_sixteen_bit(const T* __restrict__ x, T* __restrict__ y, int rows, int cols)
{
    const int lane = threadIdx.x % LANES;
    const int row = blockIdx.x * (128 / LANES) + threadIdx.x / LANES;
    const int packs = row < rows ? cols / 8 : 0;
    const uint4* from = reinterpret_cast<const uint4*>(x + (long long)row * cols);
    uint4* to = reinterpret_cast<uint4*>(y + (long long)row * cols);

    // ---- load -----------------------------------------------------------------------------------
    // One policy for all loads: as NVRTC 13.0 compiles this for sm_90, a load is then a predicated
    // instruction; with a policy of its own it has a branch. No record says which is faster.
    const unsigned long long policy = EVICT_LAST ? evict_last_policy() : 0;
    const float minus_inf = __int_as_float(0xff800000);  // adds nothing: 2^-inf = 0
    const T2 nothing = to_T2(make_float2(minus_inf, minus_inf));
    Pack v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = lane + k * LANES;
        if (pack < packs) {
            v[k].bits = load(from + pack, policy);
        } else {
#pragma unroll
            for (int c = 0; c < twos; ++c) v[k].columns[c] = nothing;
        }
    }

    // ---- reduce and exchange --------------------------------------------------------------------
    // The maximum of 16-bit values is one of them: no need to convert first.
    T2 largest = v[0].columns[0];
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int c = 0; c < twos; ++c) largest = max2(largest, v[k].columns[c]);
    const float2 both = to_float2(largest);
    const float lowest = -3.402823466e+38f;  // finite: see 02_online.cu
    const float row_max = lanes_max(fmaxf(lowest, fmaxf(both.x, both.y)));

    // exp(v - row_max) = 2^(v * log2(e) - shift). The rounding of shift is the same for the whole
    // row, so it leaves with the division. It grows with the columns: past 2^29, where it would be
    // too much, 2^(v - row_max) will do.
    const bool far = fabsf(row_max) >= 536870912.0f;
    const float slope = far ? 1.0f : 1.44269504f, shift = far ? row_max : row_max * slope;
    float2 e[PACKS][twos];
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int c = 0; c < twos; ++c) {
            const float2 two = to_float2(v[k].columns[c]);
            e[k][c].x = fast_exp2(fmaf(two.x, slope, -shift));
            e[k][c].y = fast_exp2(fmaf(two.y, slope, -shift));
            sum += e[k][c].x + e[k][c].y;
        }
    const float scale = 1.0f / lanes_sum(sum);

    // ---- write ----------------------------------------------------------------------------------
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int pack = lane + k * LANES;
#pragma unroll
        for (int c = 0; c < twos; ++c)
            v[k].columns[c] = to_T2(make_float2(e[k][c].x * scale, e[k][c].y * scale));
        if (pack < packs) store(to + pack, v[k].bits);
    }
}

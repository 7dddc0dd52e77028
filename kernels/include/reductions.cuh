// Reductions across the lanes of a warp, the exponential, and merging of (maximum, sum) pairs.
#pragma once

// Gives each lane the largest value in its group of `lanes` lanes; `lanes` is a power of two.
// All 32 lanes of the warp must call it.
template <int lanes = 32>
__device__ __forceinline__ float warp_max(float value)
{
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
    return value;
}

// Gives each lane the sum over its group of `lanes` lanes, likewise.
template <int lanes = 32>
__device__ __forceinline__ float warp_sum(float value)
{
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffff, value, distance);
    return value;
}

// 2 to the power of value, or 0 where that is below 2^-126: one instruction, whatever the compiler
// options. exp2f() is this instruction only with -ftz=true.
__device__ __forceinline__ float fast_exp2(float value)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

// e to the power of value, likewise: two instructions.
__device__ __forceinline__ float fast_exp(float value)
{
    return fast_exp2(value * 1.44269504f);
}

// A maximum starts from the lowest finite value: -inf - -inf would be NaN (see 02_online.cu).
constexpr float lowest = -3.402823466e+38f;
// The value for columns past the end of a row: exp(-inf) = 0 adds nothing.
__device__ __forceinline__ float minus_inf() { return __int_as_float(0xff800000); }

// The (maximum, sum) pair of a warp from those of its lanes. The sum is that of exp(v - maximum).
__device__ __forceinline__ float2 warp_pair(float maximum, float sum)
{
    const float largest = warp_max(maximum);
    return make_float2(largest, warp_sum(sum * fast_exp(maximum - largest)));
}

// Merges `count` pairs from shared memory; every lane of each calling warp gets the result.
__device__ __forceinline__ float2 merge_pairs(const float2* pairs, int count)
{
    const int lane = threadIdx.x % 32;
    float largest = lowest;
#pragma unroll
    for (int i = lane; i < count; i += 32) largest = fmaxf(largest, pairs[i].x);
    largest = warp_max(largest);
    float sum = 0.0f;
#pragma unroll
    for (int i = lane; i < count; i += 32) sum += pairs[i].y * fast_exp(pairs[i].x - largest);
    return make_float2(largest, warp_sum(sum));
}

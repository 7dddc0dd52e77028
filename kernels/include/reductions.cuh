// Reductions across the lanes of a warp, and the exponential.
#pragma once

// The largest value of `lanes` neighbouring lanes, in each of them; lanes is a power of two. All 32
// lanes of the warp must call it.
template <int lanes = 32>
__device__ __forceinline__ float warp_max(float value)
{
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
    return value;
}

// The sum over `lanes` neighbouring lanes, in each of them.
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

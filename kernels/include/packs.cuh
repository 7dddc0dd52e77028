// Packs: the 16 bytes that one access moves, as bits and as pairs of columns.
#pragma once
#include "formats.cuh"
#include "reductions.cuh"

constexpr int width = 16 / sizeof(T);      // columns of a pack
constexpr int pairs_per_pack = width / 2;  // pairs of columns of a pack
#ifdef PACKS
static_assert(PACKS >= 1, "PACKS must be at least 1");
#endif

union Pack {
    uint4 bits;
    T2 columns[pairs_per_pack];
    __device__ Pack() {}
};

// Sets all columns of a pack to one value.
__device__ __forceinline__ void fill(Pack& pack, float value)
{
#pragma unroll
    for (int c = 0; c < pairs_per_pack; ++c) pack.columns[c] = to_T2(make_float2(value, value));
}

// The largest value in the given packs. NaN is ignored unless all are NaN.
template <int count>
__device__ __forceinline__ float max_of(const Pack (&packs)[count])
{
    T2 largest = packs[0].columns[0];
#pragma unroll
    for (int k = 0; k < count; ++k)
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) largest = max2(largest, packs[k].columns[c]);
    const float2 both = to_float2(largest);
    return fmaxf(both.x, both.y);
}

// exp(v - maximum) of both columns of a pair.
__device__ __forceinline__ float2 exponentials(T2 columns, float maximum)
{
    const float2 v = to_float2(columns);
    return make_float2(fast_exp(v.x - maximum), fast_exp(v.y - maximum));
}

// Adds exp(v - maximum) of all columns of the given packs to a sum. With `keep`, the
// exponentials replace their columns.
template <bool keep, int count>
__device__ __forceinline__ float sum_of(Pack (&packs)[count], float maximum, float sum = 0.0f)
{
#pragma unroll
    for (int k = 0; k < count; ++k)
#pragma unroll
        for (int c = 0; c < pairs_per_pack; ++c) {
            const float2 e = exponentials(packs[k].columns[c], maximum);
            sum += e.x + e.y;
            if (keep) packs[k].columns[c] = to_T2(e);
        }
    return sum;
}

// Replaces the columns of a pack by exp(v - maximum) * factor. Without `keep`, the exponential is
// computed again: in 16 bits, this needs fewer registers than keeping the first one. The compiler
// must assume that the empty asm changes the bits; otherwise it would keep the first one.
template <bool keep>
__device__ __forceinline__ void finish(Pack& pack, float maximum, float factor)
{
    uint4& bits = pack.bits;
    if (!keep) asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
#pragma unroll
    for (int c = 0; c < pairs_per_pack; ++c) {
        const T2 columns = pack.columns[c];
        const float2 e = keep ? to_float2(columns) : exponentials(columns, maximum);
        pack.columns[c] = to_T2(make_float2(e.x * factor, e.y * factor));
    }
}

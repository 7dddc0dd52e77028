// Packs: the 16 bytes that one access moves, as bits and as pairs of columns.
#pragma once
#include "formats.cuh"
#include "reductions.cuh"

constexpr int width = 16 / sizeof(T);      // columns of a pack
constexpr int pairs_per_pack = width / 2;  // pairs of columns of a pack

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

// The largest column of some packs. NaN is ignored.
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

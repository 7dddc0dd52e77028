// y in a backward pass: loaded or, with FROM_X, computed again from x. Then parts of a row are
// merged as the pairs of 02_online.cu are. A file that includes this needs -DFROM_X and -DLOG.
#pragma once
#include "packs.cuh"

static_assert(FROM_X == 0 || FROM_X == 1, "FROM_X must be 1 (yes) or 0 (no)");
static_assert(LOG == 0 || LOG == 1, "LOG must be 1 (yes) or 0 (no)");

// The value for packs past the end of a row: it adds nothing.
__device__ __forceinline__ float past_end() { return FROM_X ? minus_inf() : 0.0f; }

// What a thread, a warp or a row has found: dot, the sum of y * dy (LOG: of dy). FROM_X adds the
// maximum of x and the sum of exp(x - max), by which y has yet to be divided.
struct Found {
    float max, sum, dot;

    // y of two columns, which are counted in.
    __device__ __forceinline__ float2 y_of(T2& columns)
    {
        const float2 e = FROM_X ? exponentials(columns, max) : to_float2(columns);
        sum += e.x + e.y;
        if (FROM_X && sizeof(T) == 4) columns = to_T2(e);
        return e;
    }

    // The same for all lanes of the warp.
    __device__ __forceinline__ Found over_warp() const
    {
        if (!FROM_X) return {0.0f, sum, warp_sum(dot)};
        const float largest = warp_max(max), weight = fast_exp(max - largest);
        return {largest, warp_sum(sum * weight), warp_sum(LOG ? dot : dot * weight)};
    }
};

// Of a thread that has counted in no columns yet.
__device__ __forceinline__ Found before(const Pack (&v)[PACKS])
{
    return {FROM_X ? fmaxf(lowest, max_of(v)) : 0.0f, 0.0f, 0.0f};
}

// Merges what the warps of a row have found.
template <int count>
__device__ __forceinline__ Found merged(const float4 (&messages)[count])
{
    const int lane = threadIdx.x % 32;
    Found row = {0.0f, 0.0f, 0.0f};
    if (FROM_X) {
        row.max = lowest;
#pragma unroll
        for (int i = lane; i < count; i += 32) row.max = fmaxf(row.max, messages[i].x);
        row.max = warp_max(row.max);
    }
#pragma unroll
    for (int i = lane; i < count; i += 32) {
        const float4 other = messages[i];
        const float weight = FROM_X ? fast_exp(other.x - row.max) : 1.0f;
        if (FROM_X) row.sum += other.y * weight;
        row.dot += LOG ? other.z : other.z * weight;
    }
    if (FROM_X) row.sum = warp_sum(row.sum);
    row.dot = warp_sum(row.dot);
    return row;
}

// y of two columns that a thread has counted in.
__device__ __forceinline__ float2 y_again(T2 columns, float thread_max, float part)
{
    float2 y = to_float2(columns);
    if (LOG && !FROM_X || FROM_X && sizeof(T) == 2) y = exponentials(columns, thread_max);
    if (FROM_X) y = make_float2(y.x * part, y.y * part);
    return y;
}

// Stores to y where x and y are aligned differently relative to 16-byte boundaries.
#pragma once
#include "packs.cuh"

// 16 of 32 bytes, from `skip` columns on: shifted by two words, one word, half a word, as needed.
__device__ __forceinline__ uint4 sixteen_bytes_at(uint4 left, uint4 right, int skip)
{
    unsigned w[8] = {left.x, left.y, left.z, left.w, right.x, right.y, right.z, right.w};
    const int bytes = skip * sizeof(T);
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = bytes & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = bytes & 4 ? w[i + 1] : w[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = bytes & 2 ? __funnelshift_r(w[i], w[i + 1], 16) : w[i];
    return make_uint4(w[0], w[1], w[2], w[3]);
}

// Writes each lane's pack to an address `late` columns past a 16-byte boundary. The 16 bytes from
// the boundary on are the last columns of the previous lane's pack and the first of its own; lane 0
// has `previous` from the last call. Written by element: the columns of a `first` pack up to the
// next boundary, and those of a `last` pack from its last boundary on.
__device__ __forceinline__ void store_late(T* to, int late, const Pack& pack, bool active,
                                           bool first, bool last, uint4& previous)
{
    const int lane = threadIdx.x % 32, from = (lane + 31) % 32;
    const uint4 own = pack.bits;
    const uint4 shuffled = make_uint4(
        __shfl_sync(0xffffffff, own.x, from), __shfl_sync(0xffffffff, own.y, from),
        __shfl_sync(0xffffffff, own.z, from), __shfl_sync(0xffffffff, own.w, from));
    const uint4 before = lane > 0 ? shuffled : previous;
    previous = shuffled;
    if (active && !first)
        __stwb(reinterpret_cast<uint4*>(to - late), sixteen_bytes_at(before, own, width - late));
    if (first || last)
#pragma unroll
        for (int c = 0; c < width; ++c)
            if (c < width - late ? first : last)
                to[c] = c % 2 ? pack.columns[c / 2].y : pack.columns[c / 2].x;
}

// Masks: which row of one, or of a bias, belongs to a row of x, and what a causal mask shows. Also
// the types of accesses that are narrower than 16 bytes.
#pragma once

template <int bytes> struct Access;
template <> struct Access<4> { using Bits = unsigned; };
template <> struct Access<8> { using Bits = uint2; };
template <> struct Access<16> { using Bits = uint4; };

// Of rows that repeat in groups: group g has rows g * rows to g * rows + rows - 1 of the mask or
// bias, in turn, each for `repeat` rows of x.
__device__ __forceinline__ int row_beside(int row, int rows, int repeat, int group)
{
    return row / group * rows + row / repeat % rows;
}

// How many of the columns a causal mask shows: query i sees keys 0 to i + diagonal.
__device__ __forceinline__ int visible_columns(int query, long long diagonal, int cols)
{
    return (int)max(0ll, min((long long)cols, query + 1 + diagonal));
}

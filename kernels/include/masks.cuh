// Masks: which row of one, or of a bias, belongs to a row of x, and what a causal mask shows. Also
// the types of accesses that are narrower than 16 bytes.
#pragma once

template <int bytes> struct Access;
template <> struct Access<4> { using Bits = unsigned; };
template <> struct Access<8> { using Bits = uint2; };
template <> struct Access<16> { using Bits = uint4; };

// The row of a mask or bias that belongs to a row of x. Each `group` rows of x use the next `rows`
// rows of the mask in turn, each of them for `repeat` rows of x.
__device__ __forceinline__ int row_beside(int row, int rows, int repeat, int group)
{
    return row / group * rows + row / repeat % rows;
}

// How many of the columns a causal mask shows: query i sees keys 0 to i + diagonal.
__device__ __forceinline__ int visible_columns(int query, long long diagonal, int cols)
{
    return (int)max(0ll, min((long long)cols, query + 1 + diagonal));
}

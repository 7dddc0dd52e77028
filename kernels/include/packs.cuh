// Packs: the 16 bytes that one access moves, as bits and as pairs of columns.
#pragma once
#include "formats.cuh"

constexpr int width = 16 / sizeof(T);      // columns of a pack
constexpr int pairs_per_pack = width / 2;  // pairs of columns of a pack

union Pack {
    uint4 bits;
    T2 columns[pairs_per_pack];
    __device__ Pack() {}
};

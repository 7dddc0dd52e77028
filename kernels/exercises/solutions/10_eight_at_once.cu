// SPDX-License-Identifier: MIT
// Idea:     eight half-precision columns per access, and sums in float; one warp per row
// Row:      one warp
// Launch:   block = 32, grid = rows
// Shared:   0
// Columns:  cols >= 8 && cols % 8 == 0
// Align:    16
// Dtype:    float16
// Arch:     sm_75
// Reads:    3 reads + 1 write
// Wastes:   reads the row three times; 06_registers.cu keeps it
// Measured: no, this is an exercise

#include <cuda_fp16.h>

// Eight columns: 16 bytes, one access.
struct alignas(16) Pack {
    __half column[8];
};

extern "C" __global__ void softmax_eight_at_once(const __half* __restrict__ x,
                                                 __half* __restrict__ y, int rows, int cols)
{
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;

    const Pack* from = reinterpret_cast<const Pack*>(x);
    Pack* to = reinterpret_cast<Pack*>(y);
    const int packs = cols / 8;

    float row_max = -3.402823466e+38f;  // finite: see 02_online.cu
    for (int pack = threadIdx.x; pack < packs; pack += 32) {
        const Pack v = from[pack];
#pragma unroll
        for (int c = 0; c < 8; ++c) row_max = fmaxf(row_max, __half2float(v.column[c]));
    }
    for (int distance = 16; distance > 0; distance /= 2)
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, distance));

    float sum = 0.0f;
    for (int pack = threadIdx.x; pack < packs; pack += 32) {
        const Pack v = from[pack];
#pragma unroll
        for (int c = 0; c < 8; ++c) sum += expf(__half2float(v.column[c]) - row_max);
    }
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, distance);

    for (int pack = threadIdx.x; pack < packs; pack += 32) {
        Pack v = from[pack];
#pragma unroll
        for (int c = 0; c < 8; ++c)
            v.column[c] = __float2half(expf(__half2float(v.column[c]) - row_max) / sum);
        to[pack] = v;
    }
}

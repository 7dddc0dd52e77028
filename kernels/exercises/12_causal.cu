// SPDX-License-Identifier: MIT
// Idea:     a causal mask: row r of y is the softmax of columns 0 to r of x, then zeros
// Row:      one warp
// Launch:   block = 32, grid = rows
// Shared:   0
// Columns:  cols >= 4 && cols % 4 == 0 && cols <= 512
// Align:    16
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 8 minutes. The kernel is correct, but it loads fully masked packs. Do not load them.

extern "C" __global__ void softmax_causal(const float* __restrict__ x, float* __restrict__ y,
                                          int rows, int cols)
{
    const int row = blockIdx.x;
    const float4* x4 = reinterpret_cast<const float4*>(x + (long long)row * cols);
    float4* y4 = reinterpret_cast<float4*>(y + (long long)row * cols);
    const int packs = cols / 4;

    const float minus_inf = __int_as_float(0xff800000);
    float4 v[4];
    float row_max = -3.402823466e+38f;  // finite: see 02_online.cu
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int pack = threadIdx.x + 32 * k;
        v[k] = make_float4(minus_inf, minus_inf, minus_inf, minus_inf);
        if (pack < packs) v[k] = x4[pack];
        // Row r sees no column after column r.
        if (4 * pack > row) v[k].x = minus_inf;
        if (4 * pack + 1 > row) v[k].y = minus_inf;
        if (4 * pack + 2 > row) v[k].z = minus_inf;
        if (4 * pack + 3 > row) v[k].w = minus_inf;
        row_max = fmaxf(row_max, fmaxf(fmaxf(v[k].x, v[k].y), fmaxf(v[k].z, v[k].w)));
    }
    for (int distance = 16; distance > 0; distance /= 2)
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, distance));

    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        v[k] = make_float4(expf(v[k].x - row_max), expf(v[k].y - row_max),
                           expf(v[k].z - row_max), expf(v[k].w - row_max));
        sum += (v[k].x + v[k].y) + (v[k].z + v[k].w);
    }
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, distance);

#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int pack = threadIdx.x + 32 * k;
        if (pack < packs)
            y4[pack] = make_float4(v[k].x / sum, v[k].y / sum, v[k].z / sum, v[k].w / sum);
    }
}

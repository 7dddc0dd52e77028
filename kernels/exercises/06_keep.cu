// SPDX-License-Identifier: MIT
// Idea:     a warp keeps a row of up to 512 columns, four float4s per lane
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
// 10 minutes. Write the code that fills `v`, so that no column is loaded twice.

extern "C" __global__ void softmax_keep(const float* __restrict__ x, float* __restrict__ y,
                                        int rows, int cols)
{
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;
    const int packs = cols / 4;  // in the row

    // Fill v, and set row_max to the largest value of this lane. If packs past the end of the
    // row are -inf, the loops below need no change.
    float4 v[4] = {};
    float row_max = -3.402823466e+38f;  // finite: see 02_online.cu
    // ---- write here ----

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

    float4* y4 = reinterpret_cast<float4*>(y);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int pack = threadIdx.x + 32 * k;
        if (pack < packs)
            y4[pack] = make_float4(v[k].x / sum, v[k].y / sum, v[k].z / sum, v[k].w / sum);
    }
}

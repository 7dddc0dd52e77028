// SPDX-License-Identifier: MIT
// Idea:     a row of up to 64 columns is at most one float4 per lane
// Row:      one warp
// Launch:   block = 128, grid = (32 * rows + block - 1) / block
// Shared:   0
// Columns:  cols >= 4 && cols % 4 == 0 && cols <= 64
// Align:    16
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 8 minutes. The results are correct, but at least half of the lanes have no columns. Let a warp
// process two rows at once; the header must change too.

extern "C" __global__ void softmax_half_warps(const float* __restrict__ x, float* __restrict__ y,
                                              int rows, int cols)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int pack = threadIdx.x % 32;
    const bool own = row < rows && pack < cols / 4;  // whether this lane has columns

    const float4* x4 = reinterpret_cast<const float4*>(x + (long long)row * cols);
    float4* y4 = reinterpret_cast<float4*>(y + (long long)row * cols);

    const float minus_inf = __int_as_float(0xff800000);
    float4 v = make_float4(minus_inf, minus_inf, minus_inf, minus_inf);
    if (own) v = x4[pack];

    float row_max = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
    row_max = fmaxf(row_max, -3.402823466e+38f);  // finite: see 02_online.cu
    for (int distance = 16; distance > 0; distance /= 2)
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, distance));

    v = make_float4(expf(v.x - row_max), expf(v.y - row_max),
                    expf(v.z - row_max), expf(v.w - row_max));
    float sum = v.x + v.y + v.z + v.w;
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, distance);

    if (own) y4[pack] = make_float4(v.x / sum, v.y / sum, v.z / sum, v.w / sum);
}

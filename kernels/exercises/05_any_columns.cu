// SPDX-License-Identifier: MIT
// Idea:     16-byte accesses for rows of any length, one warp per row
// Row:      one warp
// Launch:   block = 32, grid = rows
// Shared:   0
// Columns:  cols >= 1
// Align:    16
// Dtype:    float32
// Arch:     sm_75
// Reads:    2 reads + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 12 minutes. The kernel is correct if cols is a multiple of 4. Make it correct for every value of
// cols, with as many float4 accesses as the row allows.

// Makes the pair (row_max, sum) describe the columns of both pairs.
__device__ __forceinline__ void merge(float& row_max, float& sum, float other_max, float other_sum)
{
    const float new_max = fmaxf(row_max, other_max);
    sum = sum * expf(row_max - new_max) + other_sum * expf(other_max - new_max);
    row_max = new_max;
}

extern "C" __global__ void softmax_any_columns(const float* __restrict__ x, float* __restrict__ y,
                                               int rows, int cols)
{
    const long long start = (long long)blockIdx.x * cols;
    x += start;
    y += start;

    const int packs = cols / 4;
    const float4* x4 = reinterpret_cast<const float4*>(x);
    float4* y4 = reinterpret_cast<float4*>(y);

    float row_max = -3.402823466e+38f;  // finite: see 02_online.cu
    float sum = 0.0f;
    for (int pack = threadIdx.x; pack < packs; pack += 32) {
        const float4 v = x4[pack];
        merge(row_max, sum, v.x, 1.0f);
        merge(row_max, sum, v.y, 1.0f);
        merge(row_max, sum, v.z, 1.0f);
        merge(row_max, sum, v.w, 1.0f);
    }

    for (int distance = 16; distance > 0; distance /= 2) {
        const float other_max = __shfl_xor_sync(0xffffffff, row_max, distance);
        const float other_sum = __shfl_xor_sync(0xffffffff, sum, distance);
        merge(row_max, sum, other_max, other_sum);
    }

    for (int pack = threadIdx.x; pack < packs; pack += 32) {
        const float4 v = x4[pack];
        y4[pack] = make_float4(expf(v.x - row_max) / sum, expf(v.y - row_max) / sum,
                               expf(v.z - row_max) / sum, expf(v.w - row_max) / sum);
    }
}

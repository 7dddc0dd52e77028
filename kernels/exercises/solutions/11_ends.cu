// SPDX-License-Identifier: MIT
// Idea:     an unaligned row in a warp's registers, in packs between 16-byte boundaries
// Row:      one warp
// Launch:   block = 32, grid = rows
// Shared:   0
// Columns:  cols <= 512
// Align:    16
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   rows of more than 512 columns need more than a warp; 11_any_row.cu uses clusters
// Measured: no, this is an exercise

// The exponentials of four columns, each minus row_max.
__device__ __forceinline__ float4 exponentials(float4 v, float row_max)
{
    return make_float4(expf(v.x - row_max), expf(v.y - row_max), expf(v.z - row_max),
                       expf(v.w - row_max));
}

extern "C" __global__ void softmax_ends(const float* __restrict__ x, float* __restrict__ y,
                                        int rows, int cols)
{
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;

    const int head = min((int)((16 - (unsigned long long)x % 16) % 16 / 4), cols);
    const int packs = (cols - head) / 4;
    const int end = threadIdx.x + (threadIdx.x < head ? 0 : 4 * packs);
    const float4* x4 = reinterpret_cast<const float4*>(x + head);
    float4* y4 = reinterpret_cast<float4*>(y + head);

    const float minus_inf = __int_as_float(0xff800000);
    float4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int pack = threadIdx.x + 32 * k;
        v[k] = make_float4(minus_inf, minus_inf, minus_inf, minus_inf);
        if (pack < packs) v[k] = x4[pack];
    }
    float v_end = end < cols ? x[end] : minus_inf;

    float row_max = fmaxf(-3.402823466e+38f, v_end);  // finite: see 02_online.cu
#pragma unroll
    for (int k = 0; k < 4; ++k)
        row_max = fmaxf(row_max, fmaxf(fmaxf(v[k].x, v[k].y), fmaxf(v[k].z, v[k].w)));
    for (int distance = 16; distance > 0; distance /= 2)
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, distance));

    v_end = expf(v_end - row_max);
    float sum = v_end;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        v[k] = exponentials(v[k], row_max);
        sum += v[k].x + v[k].y + v[k].z + v[k].w;
    }
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, distance);

#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int pack = threadIdx.x + 32 * k;
        if (pack < packs)
            y4[pack] = make_float4(v[k].x / sum, v[k].y / sum, v[k].z / sum, v[k].w / sum);
    }
    if (end < cols) y[end] = v_end / sum;
}

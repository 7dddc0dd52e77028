// SPDX-License-Identifier: MIT
// Idea:     a window: row r of y is the softmax of columns r - 63 to r, and 0 elsewhere
// Row:      one warp
// Launch:   block = 32, grid = rows
// Shared:   0
// Columns:  cols >= 4 && cols % 4 == 0 && cols <= 512
// Align:    16
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   it writes the zeros of the masked columns
// Measured: no, this is an exercise

// The columns that a row sees, and how they are loaded.
struct Window {
    const float4* x4;
    int first, last;  // columns that the row sees

    // Four columns of the row, from 4 * pack on, with -inf in place of each masked column.
    // The row sees first <= column <= last; the last packs may lie past the end of the row.
    __device__ __forceinline__ float4 operator()(int pack) const
    {
        const float minus_inf = __int_as_float(0xff800000);
        float4 v = make_float4(minus_inf, minus_inf, minus_inf, minus_inf);
        // ---- write here ----
        const int col = 4 * pack;
        if (col > last || col + 3 < first) return v;
        v = x4[pack];
        if (col < first) v.x = minus_inf;
        if (col + 1 < first || col + 1 > last) v.y = minus_inf;
        if (col + 2 < first || col + 2 > last) v.z = minus_inf;
        if (col + 3 > last) v.w = minus_inf;
        return v;
    }
};

extern "C" __global__ void softmax_window(const float* __restrict__ x, float* __restrict__ y,
                                          int rows, int cols)
{
    const int row = blockIdx.x;
    float4* y4 = reinterpret_cast<float4*>(y + (long long)row * cols);
    const Window window = {reinterpret_cast<const float4*>(x + (long long)row * cols),
                           max(row - 63, 0), min(row, cols - 1)};

    float4 v[4];
    float row_max = -3.402823466e+38f;  // finite: see 02_online.cu
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        v[k] = window(threadIdx.x + 32 * k);
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
        if (4 * pack < cols)
            y4[pack] = make_float4(v[k].x / sum, v[k].y / sum, v[k].z / sum, v[k].w / sum);
    }
}

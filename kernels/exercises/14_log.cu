// SPDX-License-Identifier: MIT
// Idea:     the backward pass of log-softmax, from x
// Row:      one warp
// Launch:   block = 32, grid = rows
// Shared:   0
// Columns:  cols <= 512
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   for you to find
// Measured: no, this is an exercise
//
// 8 minutes. With p = softmax(x), this is the backward pass of softmax where dy is x:
// p * (dy - sum(p * dy)).
// Turn it into the backward pass of log-softmax.

extern "C" __global__ void log_softmax_backward(const float* __restrict__ x, float* __restrict__ y,
                                  int rows, int cols)
{
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;

    float v[16];
    float row_max = -3.402823466e+38f;  // finite: see 02_online.cu
#pragma unroll
    for (int k = 0; k < 16; ++k) {
        const int col = threadIdx.x + 32 * k;
        v[k] = col < cols ? x[col] : 0.0f;
        if (col < cols) row_max = fmaxf(row_max, v[k]);
    }
    for (int distance = 16; distance > 0; distance /= 2)
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, distance));

    float sum = 0.0f, dot = 0.0f;
#pragma unroll
    for (int k = 0; k < 16; ++k) {
        const float e = threadIdx.x + 32 * k < cols ? expf(v[k] - row_max) : 0.0f;
        sum += e;
        dot += e * v[k];
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffff, sum, distance);
        dot += __shfl_xor_sync(0xffffffff, dot, distance);
    }

#pragma unroll
    for (int k = 0; k < 16; ++k) {
        const int col = threadIdx.x + 32 * k;
        const float p = expf(v[k] - row_max) / sum;
        if (col < cols) y[col] = p * (v[k] - dot / sum);
    }
}

// SPDX-License-Identifier: MIT
// Idea:     add up each 512 elements, 64 bytes a thread: the least traffic of a read alone, which
//           is what a loss that writes no softmax needs (15). A sum must be written, or no load is
//           compiled; one for each 2 KB costs next to nothing.
// Computes: read
// Row:      none; the matrix is one flat array
// Launch:   block = 128, grid = (rows * cols + 16 * block - 1) / (16 * block)
// Shared:   0
// Columns:  cols >= 1
// Align:    16
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + 0 writes
// Wastes:   nothing; its bandwidth is the measure for kernels that write next to nothing.
// Measured: 4478 GB/s at 65536 x 4096 (H200, 2026-11-22)
//
// y[i] is the sum of the floats 512 i to 512 i + 511 of the rows * cols floats of x, of the last
// what there is.

// The sum of 32 lanes' values, in every lane.
__device__ __forceinline__ float warp_sum(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffff, value, distance);
    return value;
}

extern "C" __global__ void read(const float* __restrict__ x, float* __restrict__ y, int rows,
                                int cols)
{
    const long long count = (long long)rows * cols;
    const long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    float4 v[4];  // loaded before anything is added: four loads of a thread are in flight at once
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const long long first = 512 * warp + 128 * k + 4 * lane;
        v[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first + 4 <= count) {
            v[k] = *(const float4*)(x + first);
        } else {
            for (long long i = first; i < count; ++i)  // the last, incomplete pack
                v[k].x += x[i];
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; ++k)
        sum += (v[k].x + v[k].y) + (v[k].z + v[k].w);
    sum = warp_sum(sum);
    if (lane == 0 && 512 * warp < count) y[warp] = sum;
}

// SPDX-License-Identifier: MIT
// Idea:     who reads y next in a pipeline: reads all of a matrix and writes next to nothing.
// Row:      none; the matrix is one flat array
// Launch:   block = 128, grid = ceil_div(rows * cols, 16 * block)
// Shared:   0
// Columns:  rows * cols % 4 == 0
// Align:    16
// Dtype:    float32
// Arch:     sm_75
// Reads:    1 read + a write for each 512 elements
// Wastes:   nothing; it is no softmax, but what stands behind one (helpers/measure/pipelines.py).
// Measured: as a part of the pipelines with it
//
// y[i] is the sum of what warp i reads of the rows * cols floats of x: 4 times 16 bytes a thread.

// The sum of 32 lanes' values, in every lane.
__device__ __forceinline__ float warp_sum(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffff, value, distance);
    return value;
}

extern "C" __global__ void sums(const float* __restrict__ x, float* __restrict__ y,
                                int rows, int cols)
{
    const float4* x4 = reinterpret_cast<const float4*>(x);
    const long long packs = (long long)rows * cols / 4;
    const long long first = 4LL * blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const long long pack = first + k * blockDim.x;
        if (pack < packs) {
            const float4 v = x4[pack];
            sum += v.x + v.y + v.z + v.w;
        }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) y[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = sum;
}

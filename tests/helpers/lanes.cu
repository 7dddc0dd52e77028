// A warp or a part of it owns a row, and leaves a mark in the workspace if MARK is defined.
// Idea:     some lanes own a row
// Row:      1 to 32 lanes of a warp
// Build:    LANES = min(32, power_of_two(cols))
//           VALUES = ceil_div(cols, LANES)
// Launch:   block = 64, grid = (rows * LANES + block - 1) / block
// Shared:   0
// Workspace: 4 * rows
// Columns:  cols >= 1 && cols <= LANES * VALUES
// Align:    4
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   requests
// Measured: nothing
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#if defined(FLOAT16)
typedef __half T;
__device__ float widened(T value) { return __half2float(value); }
__device__ T rounded(float value) { return __float2half_rn(value); }
#elif defined(BFLOAT16)
typedef __nv_bfloat16 T;
__device__ float widened(T value) { return __bfloat162float(value); }
__device__ T rounded(float value) { return __float2bfloat16_rn(value); }
#else
typedef float T;
__device__ float widened(T value) { return value; }
__device__ T rounded(float value) { return value; }
#endif

extern "C" __global__ void softmax_lanes(const T* x, T* y, int rows, int cols, float* workspace)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / LANES, lane = threadIdx.x % LANES;
    const long long start = (long long)row * cols;
    float v[VALUES], largest = -3.402823466e+38f, sum = 0.0f;
    for (int k = 0; k < VALUES; ++k) {
        const int col = lane + k * LANES;
        v[k] = row < rows && col < cols ? widened(x[start + col]) : __int_as_float(0xff800000);
        largest = fmaxf(largest, v[k]);
    }
    for (int d = LANES / 2; d > 0; d /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, d));
    for (int k = 0; k < VALUES; ++k) sum += v[k] = expf(v[k] - largest);
    for (int d = LANES / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffff, sum, d);
    for (int k = 0; k < VALUES; ++k) {
        const int col = lane + k * LANES;
        if (row < rows && col < cols) y[start + col] = rounded(v[k] / sum);
    }
#ifdef MARK
    if (row < rows && lane == 0) workspace[row] = sum;
#endif
}

// CLUSTER blocks of a warp own a row, which may start at any element: each reads it, writes its own
// columns, and adds one to a count of rows in the workspace and takes it off again.
// Idea:     rows that are apart
// Row:      CLUSTER blocks
// Build:    CLUSTER = 2 when capability >= 90 && cols > 32
//                   | 1
//           AHEAD   = 1 when y_stride > x_stride
//                   | 0
// Launch:   block = 32, block == 32, grid = rows * CLUSTER
// Shared:   0
// Workspace: 4 * rows
// Columns:  cols >= 1 && cols <= 20000
// Align:    size
// Strides:  x_stride, y_stride
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   requests
// Measured: nothing
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#if defined(FLOAT16)
typedef __half T;
#elif defined(BFLOAT16)
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
#if CLUSTER > 1
#define TOGETHER __cluster_dims__(CLUSTER, 1, 1)
#else
#define TOGETHER
#endif

extern "C" __global__ void TOGETHER
softmax_apart(const T* __restrict__ x, T* __restrict__ y, int rows, int cols, long long x_stride,
              long long y_stride, unsigned* workspace)
{
    const int row = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER, lane = threadIdx.x;
    x += row * x_stride;
    y += row * y_stride;
    float largest = -3.402823466e+38f, sum = 0.0f;
    for (int col = lane; col < cols; col += 32) largest = fmaxf(largest, float(x[col]));
    for (int d = 16; d > 0; d /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, d));
    for (int col = lane; col < cols; col += 32) sum += expf(float(x[col]) - largest);
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffff, sum, d);
    for (int col = lane + 32 * rank; col < cols; col += 32 * CLUSTER)
        y[col] = T(expf(float(x[col]) - largest) / sum);
    if (lane == 0) {
        atomicAdd(workspace + row, 1u);
        atomicSub(workspace + row, 1u);
    }
    static_assert(AHEAD == 0 || AHEAD == 1, "whether rows of y get ahead of those of x");
}

// Every block copies LANES elements once all blocks have arrived at a counter in the workspace.
// Idea:     copy in step
// Computes: copy
// Row:      several blocks
// Build:    LANES = min(32, power_of_two(cols))
// Launch:   block = 32, grid = rows * ((cols + LANES - 1) / LANES), cooperative
// Shared:   4 * LANES
// Workspace: 8 * rows
// Columns:  cols >= 1 && cols <= 32 * LANES
// Align:    4
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    1 read + 1 write
// Wastes:   time
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

extern "C" __global__ void copy_together(const T* x, T* y, int rows, int cols,
                                         unsigned* workspace)
{
    if (threadIdx.x == 0) {
        atomicAdd(workspace, 1u);
        while (*(volatile unsigned*)workspace < gridDim.x) {}
    }
    __syncwarp();
    const int blocks = gridDim.x / rows, row = blockIdx.x / blocks;
    const int col = blockIdx.x % blocks * LANES + threadIdx.x;
    if (threadIdx.x < LANES && col < cols) y[(long long)row * cols + col] =
        x[(long long)row * cols + col];
}

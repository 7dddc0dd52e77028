// SPDX-License-Identifier: MIT
// Idea:     00_copy.cu for programmatic launches: the measure for a softmax that is launched so.
// Computes: copy
// Row:      none; the matrix is one flat array
// Build:    PROGRAMMATIC = 1
// Launch:   block = 128, grid = (rows * cols + 4 * block - 1) / (4 * block)
// Shared:   0
// Columns:  cols >= 1
// Align:    16
// Dtype:    float32
// Arch:     sm_90
// Reads:    1 read + 1 write
// Wastes:   nothing; but only calls that follow each other gain by it.
// Measured: as the copy of programmatic launches beside them
// y = x for x and y of rows * cols floats. y must not overlap x. PROGRAMMATIC says how it is
// launched: before the grid ahead of it on the stream has ended.

#ifndef PROGRAMMATIC
#error "compile with -DPROGRAMMATIC=1 and launch it programmatically"
#endif

extern "C" __global__ void copy_programmatic(const float* __restrict__ x, float* __restrict__ y,
                                             int rows, int cols)
{
    // As in 09_grid.cu: the next grid may start, and this one waits for the one before.
    if (PROGRAMMATIC) {
        asm volatile("griddepcontrol.launch_dependents;");
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }

    const long long count = (long long)rows * cols;
    const long long first = 4 * ((long long)blockIdx.x * blockDim.x + threadIdx.x);

    if (first + 4 <= count) {
        *(float4*)(y + first) = *(const float4*)(x + first);
    } else {
        for (long long i = first; i < count; ++i)  // the last, incomplete pack
            y[i] = x[i];
    }
}

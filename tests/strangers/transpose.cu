// SPDX-License-Identifier: MIT
// Matrix transpose, three ways: straight from global memory, through a square tile of shared
// memory, and through a tile with one spare column that keeps its columns in different banks.

#define TILE_DIM 32
#define BLOCK_ROWS 8

extern "C" __global__ void transpose_naive(float* out, const float* in, int height, int width)
{
    const int x = blockIdx.x * TILE_DIM + threadIdx.x;
    const int y = blockIdx.y * TILE_DIM + threadIdx.y;
    if (x >= width) return;
    for (int j = 0; j < TILE_DIM && y + j < height; j += BLOCK_ROWS)
        out[x * height + y + j] = in[(y + j) * width + x];
}

template <int PITCH>
__device__ __forceinline__ void transpose_through_tile(float* out, const float* in, int height,
                                                       int width)
{
    __shared__ float tile[TILE_DIM][PITCH];

    int x = blockIdx.x * TILE_DIM + threadIdx.x;
    int y = blockIdx.y * TILE_DIM + threadIdx.y;
    for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS)
        if (x < width && y + j < height)
            tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];

    __syncthreads();

    // The block's place in the result: its coordinates change sides.
    x = blockIdx.y * TILE_DIM + threadIdx.x;
    y = blockIdx.x * TILE_DIM + threadIdx.y;
    for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS)
        if (x < height && y + j < width)
            out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void transpose_tiled(float* out, const float* in, int height, int width)
{
    transpose_through_tile<TILE_DIM>(out, in, height, width);
}

extern "C" __global__ void transpose_padded(float* out, const float* in, int height, int width)
{
    transpose_through_tile<TILE_DIM + 1>(out, in, height, width);
}

// SPDX-License-Identifier: MIT
// Stencil of seven points in three dimensions. A block owns a tile of (x, y) and walks along z:
// the plane in shared memory with a halo, the points above and below in registers.

#define TILE_X 16
#define TILE_Y 8

enum { CENTRE, ALONG_X, ALONG_Y, ALONG_Z };

__constant__ float c[4] = {0.4f, 0.125f, 0.075f, 0.1f};

struct Extent {
    int nx, ny, nz;
};

__device__ __forceinline__ size_t at(const Extent& e, int x, int y, int z)
{
    return ((size_t)z * e.ny + y) * e.nx + x;
}

// Points on the surface of the box keep their values.
extern "C" __global__ void stencil7(const float* __restrict__ in, float* __restrict__ out, Extent e)
{
    __shared__ float plane[TILE_Y + 2][TILE_X + 2];

    const int x = blockIdx.x * TILE_X + threadIdx.x;
    const int y = blockIdx.y * TILE_Y + threadIdx.y;
    const int tx = threadIdx.x + 1;
    const int ty = threadIdx.y + 1;
    const bool inside = x < e.nx && y < e.ny;
    const bool edge = x == 0 || y == 0 || x == e.nx - 1 || y == e.ny - 1;

    float below = 0.0f;
    float current = inside ? in[at(e, x, y, 0)] : 0.0f;
    for (int z = 0; z < e.nz; ++z) {
        const float above = inside && z + 1 < e.nz ? in[at(e, x, y, z + 1)] : 0.0f;

        if (inside) {
            plane[ty][tx] = current;
            if (threadIdx.x == 0 && x > 0) plane[ty][0] = in[at(e, x - 1, y, z)];
            if (threadIdx.x == TILE_X - 1 && x + 1 < e.nx)
                plane[ty][TILE_X + 1] = in[at(e, x + 1, y, z)];
            if (threadIdx.y == 0 && y > 0) plane[0][tx] = in[at(e, x, y - 1, z)];
            if (threadIdx.y == TILE_Y - 1 && y + 1 < e.ny)
                plane[TILE_Y + 1][tx] = in[at(e, x, y + 1, z)];
        }
        __syncthreads();  // the plane and its halo are loaded

        if (inside) {
            float result = current;
            if (!edge && z > 0 && z < e.nz - 1)
                result = c[CENTRE] * current
                       + c[ALONG_X] * (plane[ty][tx - 1] + plane[ty][tx + 1])
                       + c[ALONG_Y] * (plane[ty - 1][tx] + plane[ty + 1][tx])
                       + c[ALONG_Z] * (below + above);
            out[at(e, x, y, z)] = result;
        }
        __syncthreads();  // the plane may be overwritten

        below = current;
        current = above;
    }
}

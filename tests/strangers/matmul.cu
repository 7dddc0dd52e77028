// SPDX-License-Identifier: MIT
// Product of two row-major matrices, c = a * b. A block computes one square tile of c and walks
// over a and b in tiles that its threads load together into shared memory.

template <typename T, int TILE>
__global__ void matmul(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m,
                       int n, int k)
{
    __shared__ T a_tile[TILE][TILE];
    __shared__ T b_tile[TILE][TILE];

    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty;
    const int col = blockIdx.x * TILE + tx;

    T sum = 0;
    for (int start = 0; start < k; start += TILE) {
        a_tile[ty][tx] = row < m && start + tx < k ? a[row * k + start + tx] : T(0);
        b_tile[ty][tx] = start + ty < k && col < n ? b[(start + ty) * n + col] : T(0);
        __syncthreads();  // the tiles are loaded
#pragma unroll
        for (int j = 0; j < TILE; ++j)
            sum += a_tile[ty][j] * b_tile[j][tx];
        __syncthreads();  // nobody needs them any more
    }

    if (row < m && col < n)
        c[row * n + col] = sum;
}

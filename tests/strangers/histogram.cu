// SPDX-License-Identifier: MIT
// Histogram of 256 bins: each block counts in shared memory, then adds its counts to the global
// ones. Works for any integer type; values outside 0 to 255 are not counted.

constexpr int NUM_BINS = 256;

template <typename T>
__global__ void histogram(const T* __restrict__ data, unsigned int* __restrict__ bins, int n)
{
    __shared__ unsigned int local[NUM_BINS];

    for (int b = threadIdx.x; b < NUM_BINS; b += blockDim.x)
        local[b] = 0;
    __syncthreads();  // all bins are empty

    const int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const int value = static_cast<int>(data[i]);
        if (value >= 0 && value < NUM_BINS)
            atomicAdd(&local[value], 1u);
    }
    __syncthreads();  // all values are counted

    for (int b = threadIdx.x; b < NUM_BINS; b += blockDim.x)
        if (local[b] > 0)
            atomicAdd(&bins[b], local[b]);
}

// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: 16-bit floating point.
// See tests/simt/test_features.py.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Sums of small whole numbers, which are exact in 16 bits: of pairs, and of their second halves.
extern "C" __global__ void f16_sums(const __half2* x, __half2* pairs, __half* ones, int groups,
                                    int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(pairs + i % groups, x[i]);
    atomicAdd(ones + i % groups, __high2half(x[i]));
}

extern "C" __global__ void bf16_sums(const __nv_bfloat162* x, __nv_bfloat162* pairs,
                                     __nv_bfloat16* ones, int groups, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(pairs + i % groups, x[i]);
    atomicAdd(ones + i % groups, __high2bfloat16(x[i]));
}

// SPDX-License-Identifier: MIT
// A template without a bug, named as cupy.RawModule names it: "scale<float, 4>".

template <typename Value, int count>
__global__ void scale(Value* y, const Value* x, Value by, int n)
{
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * count;
#pragma unroll
    for (int j = 0; j < count; ++j)
        if (first + j < n) y[first + j] = x[first + j] * by + Value(count);
}

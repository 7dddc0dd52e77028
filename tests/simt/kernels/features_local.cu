// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: local memory, and variables of the module.
// See tests/simt/test_features.py.

// ---- local memory -------------------------------------------------------------------------------

// Elements of one byte and of eight in one frame, and an access of 16 bytes.
extern "C" __global__ void local_sizes(const int* x, long long* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    signed char small[11];
    long long wide[5];
    float4 quad[3];
    for (int j = 0; j < 11; ++j) small[j] = (signed char)(x[i] * (j + 1));
    for (int j = 0; j < 5; ++j) wide[j] = (long long)(x[i] + j) << 33;
    for (int j = 0; j < 3; ++j) quad[j] = make_float4(x[i], j, x[i] * j, 2.0f);
    const unsigned at = x[i];
    const float4 q = quad[at % 3];
    y[i] = small[at % 11] + wide[at % 5] + (long long)(q.x + q.y * q.z - q.w);
}

// ---- variables of the module --------------------------------------------------------------------

__device__ int row[5] = {2, 3, 5, 7, 11};
__device__ int* middle = &row[2];

// A variable whose initial value is the address of another.
extern "C" __global__ void device_pointer(int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = middle[i % 5 - 2] * i;
}

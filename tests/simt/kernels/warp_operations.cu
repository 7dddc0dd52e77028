// SPDX-License-Identifier: MIT
// Shuffles and votes whose mask does not name the lanes that execute them.
// Each kernel has a twin, NAME_clean, without the bug.

extern "C" __global__ void returned(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 >= 16) return;
    v += __shfl_xor_sync(0xffffffff, v, 1);  // <- lane missing from a warp operation
    y[i] = v;
}

extern "C" __global__ void returned_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 >= 16) return;
    v += __shfl_xor_sync(0x0000ffff, v, 1);
    y[i] = v;
}

extern "C" __global__ void diverged(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 16)
        v += __shfl_xor_sync(0xffffffff, v, 1);  // <- lane missing from a warp operation
    else
        v *= 2.0f;
    y[i] = v;
}

extern "C" __global__ void diverged_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 16)
        v += __shfl_xor_sync(0x0000ffff, v, 1);
    else
        v *= 2.0f;
    y[i] = v;
}

extern "C" __global__ void both_sides(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 16)
        v += __shfl_xor_sync(0xffffffff, v, 1);  // <- lane missing from a warp operation
    else
        v -= __shfl_xor_sync(0xffffffff, v, 2);  // <- lane missing from a warp operation
    y[i] = v;
}

extern "C" __global__ void both_sides_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 16)
        v += __shfl_xor_sync(0x0000ffff, v, 1);
    else
        v -= __shfl_xor_sync(0xffff0000, v, 2);
    y[i] = v;
}

extern "C" __global__ void outside(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 16)
        v += __shfl_xor_sync(0x0000ffff, v, 16);  // <- shuffle from a lane that takes no part
    y[i] = v;
}

extern "C" __global__ void outside_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 16)
        v += __shfl_xor_sync(0x0000ffff, v, 8);
    y[i] = v;
}

extern "C" __global__ void one_lane_outside(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 31)
        v += __shfl_down_sync(0x7fffffff, v, 1);  // <- shuffle from a lane that takes no part
    y[i] = v;
}

extern "C" __global__ void one_lane_outside_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    if (t % 32 < 31)
        v += __shfl_down_sync(0x7fffffff, v, 1, 1);
    y[i] = v;
}

extern "C" __global__ void ballot(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    unsigned votes = 0;
    if (x[i] > n)
        votes = __ballot_sync(0xffffffff, x[i] > 2 * n);  // <- lane missing from a warp operation
    y[i] = votes;
}

extern "C" __global__ void ballot_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    unsigned votes = 0;
    votes = __ballot_sync(0xffffffff, x[i] > 2 * n);
    y[i] = votes;
}

extern "C" __global__ void syncwarp(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    y[i] = x[i];
    if (t % 2) __syncwarp();  // <- lane missing from a warp operation
    y[i] += 1;
}

extern "C" __global__ void syncwarp_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    y[i] = x[i];
    if (t % 2) __syncwarp(0xaaaaaaaa);
    y[i] += 1;
}

extern "C" __global__ void leaving_a_loop(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    for (int j = 0; j < t % 4; ++j)
        v += __shfl_xor_sync(0xffffffff, v, 4);  // <- lane missing from a warp operation
    y[i] = v;
}

extern "C" __global__ void leaving_a_loop_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    for (int j = 0; j < n % 4; ++j)
        v += __shfl_xor_sync(0xffffffff, v, 4);
    y[i] = v;
}

extern "C" __global__ void own_mask(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    v += __shfl_xor_sync(0x0000ffff, v, 1);  // <- lane missing from its own mask
    y[i] = v;
}

extern "C" __global__ void own_mask_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    v += __shfl_xor_sync(0xffffffff, v, 1);
    y[i] = v;
}

extern "C" __global__ void short_warp(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    v += __shfl_xor_sync(0xffffffff, v, 16);  // <- shuffle from a lane that takes no part
    y[i] = v;
}

extern "C" __global__ void short_warp_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    v += __shfl_xor_sync(0xffffffff, v, 8);
    y[i] = v;
}

extern "C" __global__ void predicate_only(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    y[i] = x[i];
    if (t == 5) y[i] = __any_sync(0xffffffff, x[i] > n);  // <- lane missing from a warp operation
}

extern "C" __global__ void predicate_only_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    y[i] = x[i];
    if (t == 5) y[i] = __any_sync(1 << 5, x[i] > n);
}

// SPDX-License-Identifier: MIT
// Accesses outside of the block's shared memory, off their alignment, or before any store.
// Each kernel has a twin, NAME_clean, without the bug.

extern __shared__ float dynamic[];

extern "C" __global__ void read_past(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    y[i] = s[t + 1];  // <- out-of-bounds shared load
}

extern "C" __global__ void read_past_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    y[i] = s[(t + 1) % 64];
}

extern "C" __global__ void read_before(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    y[i] = s[t - 1];  // <- out-of-bounds shared load
}

extern "C" __global__ void read_before_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    y[i] = s[(t + 63) % 64];
}

extern "C" __global__ void store_past(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t + 1] = x[i];  // <- out-of-bounds shared store
    __syncthreads();
    y[i] = t ? s[t] : 0.0f;
}

extern "C" __global__ void store_past_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[(t + 1) % 64] = x[i];
    __syncthreads();
    y[i] = t ? s[t] : 0.0f;
}

extern "C" __global__ void far_away(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    y[i] = s[t ^ n];  // <- out-of-bounds shared load
}

extern "C" __global__ void far_away_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    y[i] = s[t ^ (n >> 28)];
}

extern "C" __global__ void too_small(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    dynamic[t] = x[i];  // <- out-of-bounds shared store
    __syncthreads();
    y[i] = dynamic[63 - t];  // <- out-of-bounds shared load
}

extern "C" __global__ void too_small_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    dynamic[t] = x[i];
    __syncthreads();
    y[i] = dynamic[63 - t];
}

extern "C" __global__ void misaligned_load(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float4 s[17];
    float* f = reinterpret_cast<float*>(s);
    f[t] = x[i];
    if (t < 4) f[64 + t] = 0.0f;
    __syncthreads();
    const float4 v = *reinterpret_cast<float4*>(f + t / 4 * 4 + 1);  // <- misaligned shared load
    y[i] = v.x + v.w;
}

extern "C" __global__ void misaligned_load_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float4 s[17];
    float* f = reinterpret_cast<float*>(s);
    f[t] = x[i];
    if (t < 4) f[64 + t] = 0.0f;
    __syncthreads();
    const float4 v = *reinterpret_cast<float4*>(f + t / 4 * 4);
    y[i] = v.x + v.w;
}

extern "C" __global__ void misaligned_store(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float4 s[65];
    float* f = reinterpret_cast<float*>(s);
    *reinterpret_cast<float2*>(f + 2 * t + n % 2) = make_float2(x[i], 1.0f);  // <- misaligned shared store
    y[i] = 0.0f;
}

extern "C" __global__ void misaligned_store_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float4 s[65];
    float* f = reinterpret_cast<float*>(s);
    *reinterpret_cast<float2*>(f + 2 * t + n % 2 * 2) = make_float2(x[i], 1.0f);
    y[i] = 0.0f;
}

extern "C" __global__ void partial_fill(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    if (t < 40) s[t] = x[i];
    __syncthreads();
    y[i] = s[63 - t];  // <- read of unwritten shared memory
}

extern "C" __global__ void partial_fill_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    if (t < 64) s[t] = x[i];
    __syncthreads();
    y[i] = s[63 - t];
}

extern "C" __global__ void no_fill(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    if (n < 0) s[t] = x[i];
    __syncthreads();
    y[i] = s[t];  // <- read of unwritten shared memory
}

extern "C" __global__ void no_fill_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    if (n > 0) s[t] = x[i];
    __syncthreads();
    y[i] = s[t];
}

extern "C" __global__ void half_a_vector(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float2 s[64];
    s[t].x = x[i];
    const float2 v = s[t];  // <- read of unwritten shared memory
    y[i] = v.x + v.y;
}

extern "C" __global__ void half_a_vector_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float2 s[64];
    s[t] = make_float2(x[i], 1.0f);
    const float2 v = s[t];
    y[i] = v.x + v.y;
}

extern "C" __global__ void any_pointer_past(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    const float* from = t % 2 ? s + t + 1 : x + i;
    y[i] = *from;  // <- out-of-bounds shared load
}

extern "C" __global__ void any_pointer_past_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    __shared__ float s[64];
    s[t] = x[i];
    __syncthreads();
    const float* from = t % 2 ? s + t - 1 : x + i;
    y[i] = *from;
}

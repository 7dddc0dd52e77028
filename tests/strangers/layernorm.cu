// SPDX-License-Identifier: MIT
// Layer normalisation, a block per row: Welford's running mean and variance in one pass over the
// row, four floats at a time where the row length allows it, merged by warp shuffles.

#define WARP_SIZE 32

struct Welford {
    float mean;
    float m2;  // sum of squared distances from the mean
    float count;
};

__device__ __forceinline__ void push(Welford& w, float x)
{
    w.count += 1.0f;
    const float delta = x - w.mean;
    w.mean += delta / w.count;
    w.m2 += delta * (x - w.mean);
}

__device__ __forceinline__ Welford merge(const Welford& a, const Welford& b)
{
    if (b.count == 0.0f) return a;
    const float count = a.count + b.count;
    const float delta = b.mean - a.mean;
    const float share = b.count / count;
    return {a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.count * share, count};
}

__device__ Welford merge_warp(Welford w)
{
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset >>= 1) {
        Welford other;
        other.mean = __shfl_xor_sync(0xffffffff, w.mean, offset);
        other.m2 = __shfl_xor_sync(0xffffffff, w.m2, offset);
        other.count = __shfl_xor_sync(0xffffffff, w.count, offset);
        w = merge(w, other);
    }
    return w;
}

// blockDim.x is a multiple of 32.
extern "C" __global__ void layernorm(const float* __restrict__ x, const float* __restrict__ gamma,
                                     const float* __restrict__ beta, float* __restrict__ y,
                                     int cols, float epsilon)
{
    __shared__ Welford per_warp[WARP_SIZE];
    const float* row = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;
    const bool by_four = cols % 4 == 0;

    Welford w = {0.0f, 0.0f, 0.0f};
    if (by_four) {
        const float4* row4 = reinterpret_cast<const float4*>(row);
        for (int i = threadIdx.x; i < cols / 4; i += blockDim.x) {
            const float4 v = row4[i];
            push(w, v.x);
            push(w, v.y);
            push(w, v.z);
            push(w, v.w);
        }
    } else {
        for (int i = threadIdx.x; i < cols; i += blockDim.x)
            push(w, row[i]);
    }

    const int lane = threadIdx.x % WARP_SIZE;
    const int warp = threadIdx.x / WARP_SIZE;
    w = merge_warp(w);
    if (lane == 0) per_warp[warp] = w;
    __syncthreads();  // each warp's share is stored
    w = lane < blockDim.x / WARP_SIZE ? per_warp[lane] : Welford{0.0f, 0.0f, 0.0f};
    w = merge_warp(w);
    const float scale = rsqrtf(w.m2 / w.count + epsilon);

    if (by_four) {
        const float4* row4 = reinterpret_cast<const float4*>(row);
        const float4* gamma4 = reinterpret_cast<const float4*>(gamma);
        const float4* beta4 = reinterpret_cast<const float4*>(beta);
        float4* out4 = reinterpret_cast<float4*>(out);
        for (int i = threadIdx.x; i < cols / 4; i += blockDim.x) {
            const float4 v = row4[i], g = gamma4[i], b = beta4[i];
            out4[i] = make_float4((v.x - w.mean) * scale * g.x + b.x,
                                  (v.y - w.mean) * scale * g.y + b.y,
                                  (v.z - w.mean) * scale * g.z + b.z,
                                  (v.w - w.mean) * scale * g.w + b.w);
        }
    } else {
        for (int i = threadIdx.x; i < cols; i += blockDim.x)
            out[i] = (row[i] - w.mean) * scale * gamma[i] + beta[i];
    }
}

// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: cache hints and other inline assembly.
// See tests/simt/test_features.py.

extern "C" __global__ void cache_hints(const float4* x, float4* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(x + n - 1 - i));
    asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(y + i), "f"(v.w), "f"(v.z),
                 "f"(v.y), "f"(v.x)
                 : "memory");
}

extern "C" __global__ void eviction_policy(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long first, last;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm("createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %0, 0.5;" : "=l"(last));
    if (i >= n) return;
    float a, b;
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(a) : "l"(x + i), "l"(first));
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.f32 %0, [%1], %2;"
                 : "=f"(b)
                 : "l"(x + (i + 1) % n), "l"(last));
    asm volatile("st.global.L1::no_allocate.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(y + i),
                 "f"(a - 2 * b), "l"(first)
                 : "memory");
}

extern "C" __global__ void streaming(const float4* x, const double* z, const int* w, float4* y,
                                     int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 v = __ldcs(x + i);
    v.x += (float)__ldg(z + i);
    v.y += __ldcg(w + i);
    v.z += __ldca(w + n - 1 - i);
    v.w += __ldlu(w + i / 2) + __ldcv(w + i / 3);
    __stcs(y + i, v);
    __stcg(&y[n + i].x, v.x * 2);
    __stwt(&y[n + i].y, v.y * 2);
    __stwb(reinterpret_cast<float2*>(&y[n + i].z), make_float2(v.z * 2, v.w * 2));
}

// Each thread prefetches the line that it reads later.
extern "C" __global__ void prefetch(const float* x, float* y, int n)
{
    const int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        if (i + stride < n) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(x + i + stride));
            asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(x + i + stride));
            asm volatile("prefetchu.L1 [%0];" ::"l"(x + i + stride));
        }
        y[i] = x[i] + 1;
    }
}

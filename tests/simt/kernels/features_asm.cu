// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: cache hints and other inline assembly.
// See tests/simt/features.

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

extern "C" __global__ void fast_exponential(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x[i]));
    y[i] = v;
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

// A loop in a scope of its own; the two copies of it use the same label.
__device__ __forceinline__ unsigned divisor(unsigned a, unsigned b)
{
    unsigned result;
    asm volatile(
        "{\n\t"
        ".reg .pred done;\n\t"
        ".reg .u32 a, b, rest;\n\t"
        "mov.u32 a, %1;\n\t"
        "mov.u32 b, %2;\n"
        "AGAIN:\n\t"
        "setp.eq.u32 done, b, 0;\n\t"
        "@done bra READY;\n\t"
        "rem.u32 rest, a, b;\n\t"
        "mov.u32 a, b;\n\t"
        "mov.u32 b, rest;\n\t"
        "bra AGAIN;\n"
        "READY:\n\t"
        "mov.u32 %0, a;\n\t"
        "}"
        : "=r"(result)
        : "r"(a), "r"(b));
    return result;
}

extern "C" __global__ void asm_loop(const unsigned* x, unsigned* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 1000 * divisor(x[i], 360360u + i) + divisor(x[i] + 1, 30030u);
}

// Registers of nested scopes, of which the inner ones hide the outer ones.
extern "C" __global__ void nested_scopes(const int* x, int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v;
    asm("{\n\t"
        ".reg .s32 t, u;\n\t"
        "add.s32 t, %1, 5;\n\t"
        "{ .reg .s32 t; mul.lo.s32 t, %1, 3; mov.s32 u, t; }\n\t"
        "{ .reg .s32 t; sub.s32 t, u, 100; max.s32 u, t, u; }\n\t"
        "sub.s32 %0, t, u;\n\t"
        "}"
        : "=r"(v)
        : "r"(x[i]));
    y[i] = v;
}

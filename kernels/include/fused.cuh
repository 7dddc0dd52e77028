// Loads and packs for a fused softmax: of x, only the packs that are wanted; if chosen, a bias
// (BIAS=1) and a mask of bytes (MASK=1).
#pragma once
#include "cache_hints.cuh"
#include "formats.cuh"
#include "masks.cuh"
#include "reductions.cuh"

static_assert(BIAS == 0 || BIAS == 1, "BIAS must be 1 (yes) or 0 (no)");
static_assert(WIDE == 0 || WIDE == 1 && sizeof(T) == 2, "WIDE must be 0 or, for 16-bit x, 1");

template <bool wide> struct Written { using Type = T; };
template <> struct Written<true> { using Type = float; };
using Y = Written<WIDE>::Type;  // an element of y

constexpr int columns = 16 / sizeof(Y);   // of a pack, which is 16 bytes of y

using Input = Access<columns * sizeof(T)>::Bits;  // a pack of x, or of bias
using Hidden = Access<columns>::Bits;             // of the mask: a byte for each column
using Output = uint4;                             // of y

// A policy for loads without a preference.
__device__ __forceinline__ unsigned long long usual_policy()
{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Loads a pack of x if it is wanted, else gives zeros. The condition is a predicate in the PTX:
// around inline PTX, NVRTC would keep a branch, and move the conversion from bfloat16 into it, so
// that the next load would be issued only after this one had arrived.
__device__ __forceinline__ Input load_if(bool wanted, const Input* from)
{
    const unsigned long long policy = EVICT_LAST ? evict_last_policy() : usual_policy();
    Input bits = {};
#if WIDE
    asm volatile("{ .reg .pred wanted; setp.ne.s32 wanted, %2, 0;"
                 " @wanted ld.global.nc.L2::cache_hint.v2.b32 {%0, %1}, [%3], %4; }"
                 : "+r"(bits.x), "+r"(bits.y) : "r"((int)wanted), "l"(from), "l"(policy));
#else
    asm volatile("{ .reg .pred wanted; setp.ne.s32 wanted, %4, 0;"
                 " @wanted ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%5], %6; }"
                 : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w)
                 : "r"((int)wanted), "l"(from), "l"(policy));
#endif
    return bits;
}

// What is read in addition to a row of x.
struct Beside {
    const Input* bias;
    const Hidden* mask;  // a byte for each column

    struct Fetched {
        Input bias;
        Hidden mask;

        // Of columns c and c + 1.
        __device__ __forceinline__ float2 bias_at(int c) const
        {
            const T2* pairs = reinterpret_cast<const T2*>(&bias);
            return BIAS ? to_float2(pairs[c / 2]) : make_float2(0.0f, 0.0f);
        }
        __device__ __forceinline__ bool masks(int c) const
        {
            return MASK == 1 && reinterpret_cast<const unsigned char*>(&mask)[c];
        }
    };

    __device__ __forceinline__ Fetched fetch(int pack) const
    {
        Fetched fetched;
        if (BIAS) fetched.bias = bias[pack];
        if (MASK == 1) fetched.mask = mask[pack];
        return fetched;
    }
};

__device__ __forceinline__ Beside beside(const T* bias, int bias_row,
                                         const unsigned char* mask, int mask_row, int cols)
{
    return {reinterpret_cast<const Input*>(bias + (long long)bias_row * cols),
            reinterpret_cast<const Hidden*>(mask + (long long)mask_row * cols)};
}

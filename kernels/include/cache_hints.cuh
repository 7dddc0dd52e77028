// Cache hints: 16-byte loads whose data the L2 is asked to evict last. Most large matrices take
// less time with them, although each byte is read only once; the reason is an open question
// (notebooks/deeper/08_evict_last.ipynb). They need sm_80 or later.
#pragma once

#ifdef EVICT_LAST
static_assert(EVICT_LAST == 0 || EVICT_LAST == 1, "EVICT_LAST must be 1 (yes) or 0 (no)");
#endif
#ifdef STREAMING
static_assert(STREAMING == 0 || STREAMING == 1, "STREAMING must be 1 (yes) or 0 (no)");
#endif

// A policy for loads: evict last. Each load may create its own. When NVRTC 13.0 compiles
// that for sm_90, each load gets a branch; with one policy for all, a load is a predicated
// instruction, and the compiler may move other work between the loads. We have not measured
// which is faster.
__device__ __forceinline__ unsigned long long evict_last_policy()
{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Loads 16 bytes through the read-only path (".nc"): nothing may write them while this grid runs.
__device__ __forceinline__ uint4 load_evict_last(const uint4* from, unsigned long long policy)
{
    uint4 bits;
    asm volatile("ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(from), "l"(policy));
    return bits;
}

// The same for bytes that this grid may also write: not through the read-only path.
__device__ __forceinline__ uint4 load_written_evict_last(const uint4* from,
                                                         unsigned long long policy)
{
    uint4 bits;
    asm volatile("ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(from), "l"(policy));
    return bits;
}

// Loads 16 bytes that are read once, with the hint or with an ordinary load.
template <bool evict_last>
__device__ __forceinline__ uint4 load_once(const uint4* from)
{
    return evict_last ? load_evict_last(from, evict_last_policy()) : *from;
}

// Stores 16 bytes: as streaming data, which the caches may evict first, or as usual.
template <bool streaming>
__device__ __forceinline__ void store(uint4* to, uint4 bits)
{
    if (streaming)
        __stcs(to, bits);
    else
        *to = bits;
}

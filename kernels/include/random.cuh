// Random numbers for dropout: which columns of a row stay depends on seed, offset, row and column
// alone, so that the backward pass draws the same ones again. DROPOUT is 1 for dropout, or 0.
#pragma once

// 128 random bits from each of `count` counters and one key: Philox 4x32 (Salmon and others,
// Parallel random numbers: as easy as 1, 2, 3, SC 2011), of seven rounds, the fewest that pass
// BigCrush there. Round by round, so that each key is made once.
template <int count>
__device__ __forceinline__ void philox(uint4* counters, uint2 key)
{
#pragma unroll
    for (int round = 0; round < 7; ++round) {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const uint4 from = counters[i];
            const unsigned long long a = 0xD2511F53ull * from.x, b = 0xCD9E8D57ull * from.z;
            counters[i] = make_uint4((unsigned)(b >> 32) ^ from.y ^ key.x, (unsigned)b,
                                     (unsigned)(a >> 32) ^ from.w ^ key.y, (unsigned)a);
        }
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
}

// Which columns of a row stay. The key is the seed, the counter {column / 8, row, offset}; what
// they give is eight numbers of 16 bits. Column c takes number c % 8, and is dropped if that is
// below p * 65536, rounded down.
struct Dropout {
    float p;
    unsigned row;
    unsigned long long seed, offset;

    // The numbers of the packs first, first + step, ...: two in a word, the lower half first.
    template <int width, int packs>
    __device__ __forceinline__ void draw(int first, int step, uint4 (&drawn)[packs]) const
    {
#pragma unroll
        for (int k = 0; k < packs; ++k)
            drawn[k] = make_uint4((unsigned)(first + k * step) * width / 8, row, (unsigned)offset,
                                  offset >> 32);
        philox<packs>(drawn, make_uint2((unsigned)seed, seed >> 32));
#pragma unroll
        for (int k = 0; k < packs; ++k)  // two packs of four columns have a counter
            if (width == 4 && (first + k * step) % 2)
                drawn[k].x = drawn[k].z, drawn[k].y = drawn[k].w;
    }

    // Whether column c of a pack stays. The lower half of an odd column's word decides nothing.
    __device__ __forceinline__ bool stays(const uint4& drawn, int c) const
    {
        const unsigned word = reinterpret_cast<const unsigned*>(&drawn)[c / 2];
        return (c % 2 ? word : word << 16) >= (unsigned)(p * 65536.0f) << 16;
    }

    // The factor for columns that are kept: 1 / (1 - p) for the rounded p, which preserves the
    // mean; 0 for p = 1, whose bound wraps to 0, so that no column would be dropped.
    __device__ __forceinline__ float factor() const
    {
        if (!DROPOUT) return 1.0f;
        const float left = 1.0f - floorf(p * 65536.0f) / 65536.0f;
        return left > 0.0f ? 1.0f / left : 0.0f;
    }
};

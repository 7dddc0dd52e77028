// SPDX-License-Identifier: MIT
// Estimates pi: random points in the unit square, counted if they fall inside the quarter circle.
// Each thread has a PCG generator with a stream of its own; hits are added up in 64 bits.

struct Pcg32 {
    unsigned long long state;
    unsigned long long increment;  // odd; another stream for each value

    __device__ Pcg32(unsigned long long seed, unsigned long long stream)
        : state(0), increment(stream << 1 | 1)
    {
        next();
        state += seed;
        next();
    }

    __device__ unsigned int next()
    {
        const unsigned long long old = state;
        state = old * 6364136223846793005ull + increment;
        const unsigned int mixed = (unsigned int)(((old >> 18) ^ old) >> 27);
        const unsigned int turn = (unsigned int)(old >> 59);
        return mixed >> turn | mixed << ((32 - turn) & 31);
    }

    __device__ float uniform() { return (next() >> 8) * (1.0f / (1 << 24)); }
};

__device__ unsigned long long warp_sum(unsigned long long value)
{
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_down_sync(0xffffffff, value, offset);
    return value;
}

// blockDim.x is a multiple of 32.
extern "C" __global__ void count_hits(unsigned long long* hits, unsigned long long seed,
                                      long long samples)
{
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long threads = (long long)gridDim.x * blockDim.x;

    Pcg32 random(seed, index);
    unsigned long long inside = 0;
    for (long long i = index; i < samples; i += threads) {
        const float x = random.uniform();
        const float y = random.uniform();
        if (x * x + y * y < 1.0f) ++inside;
    }

    inside = warp_sum(inside);
    if (threadIdx.x % 32 == 0) atomicAdd(hits, inside);
}

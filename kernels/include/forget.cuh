// For 16-bit columns that are converted to floats twice.
#pragma once

// Leaves bits unchanged. The compiler, which does not know that zero is 0, converts the columns
// again instead of keeping the floats, which need twice as many registers.
__device__ __forceinline__ void forget(uint4& bits, unsigned zero)
{
    bits = make_uint4(bits.x ^ zero, bits.y ^ zero, bits.z ^ zero, bits.w ^ zero);
}

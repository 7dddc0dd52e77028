// Exchange between blocks anywhere on the GPU: a (max, sum) pair is one aligned word of 64 bits in
// global memory, so that the data is its own signal. A slot that holds 0 is empty: no pair has
// these bits, since a sum is 0 only if the maximum is the lowest float. All blocks must run at the
// same time (a cooperative launch).
#pragma once

using Message = unsigned long long;

__device__ __forceinline__ Message message_of(float2 pair)
{
    return (Message)__float_as_uint(pair.y) << 32 | __float_as_uint(pair.x);
}
__device__ __forceinline__ float2 pair_of(Message message)
{
    return make_float2(__uint_as_float((unsigned)message), __uint_as_float(message >> 32));
}

// Blocks write and read slots at the same time, so no access may be an ordinary one. Those below
// are seen by the whole GPU, in one piece, and in one order for each slot. PTX guarantees that
// for an aligned scalar of up to 64 bits; access to a vector counts as one access per element.
__device__ __forceinline__ void store_relaxed(Message* slot, Message message)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(slot), "l"(message) : "memory");
}

__device__ __forceinline__ Message load_relaxed(const Message* slot)
{
    Message message;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(message) : "l"(slot) : "memory");
    return message;
}

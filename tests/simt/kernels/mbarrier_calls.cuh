// SPDX-License-Identifier: MIT
// Calls of mbarriers and of the copies that they count, for several files of kernels.

typedef unsigned long long Barrier;

__device__ __forceinline__ unsigned place(const void* shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

__device__ __forceinline__ void init(Barrier* barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place(barrier)), "r"(count)
                 : "memory");
}

#define ARRIVE(barrier)                                                                          \
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place(barrier)) : "memory")

#define EXPECT(barrier, bytes)                                                                   \
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place(barrier)), \
                 "r"((int)(bytes))                                                               \
                 : "memory")

#define WAIT(barrier, parity)                                                                    \
    asm volatile(                                                                                \
        "{\n\t"                                                                                  \
        ".reg .pred done;\n"                                                                     \
        "AGAIN:\n\t"                                                                             \
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"                           \
        "@!done bra AGAIN;\n\t"                                                                  \
        "}" ::"r"(place(barrier)),                                                               \
        "r"(parity)                                                                              \
        : "memory")

#define BULK_LOAD(to, from, bytes, barrier)                                                      \
    asm volatile(                                                                                \
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "     \
        "[%3];" ::"r"(place(to)),                                                                \
        "l"(from), "r"((int)(bytes)), "r"(place(barrier))                                        \
        : "memory")

__device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

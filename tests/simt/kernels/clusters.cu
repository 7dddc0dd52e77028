// SPDX-License-Identifier: MIT
// Blocks of a cluster do not wait for one another before they touch each other's shared memory.
// Wrappers whose place a bug is reported at are macros, so that it counts for the line that uses
// them.

#include "twins.cuh"
#include <cooperative_groups.h>

namespace groups = cooperative_groups;

typedef unsigned long long Barrier;

__device__ __forceinline__ unsigned place(const void* shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

// The same variable in the shared memory of another block of the cluster.
__device__ __forceinline__ unsigned place_in(const void* shared, unsigned rank)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place(shared)), "r"(rank));
    return there;
}

__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

#define CLUSTER_WAIT() asm volatile("barrier.cluster.wait.acquire;" ::: "memory")

__device__ __forceinline__ void init(Barrier* barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place(barrier)), "r"(count)
                 : "memory");
}

__device__ __forceinline__ void expect(Barrier* barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place(barrier)),
                 "r"(bytes)
                 : "memory");
}

#define ARRIVE_AT(barrier, rank)                                                                 \
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(           \
                     place_in(barrier, rank))                                                    \
                 : "memory")

#define LOAD_FROM(value, from, rank)                                                             \
    asm volatile("ld.shared::cluster.f32 %0, [%1];"                                              \
                 : "=f"(value)                                                                   \
                 : "r"(place_in(from, rank))                                                     \
                 : "memory")

#define STORE_ASYNC(to, value, barrier, rank)                                                    \
    asm volatile(                                                                                \
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(       \
            place_in(to, rank)),                                                                 \
        "f"(value), "r"(place_in(barrier, rank))                                                 \
        : "memory")

#define WAIT(barrier, parity)                                                                    \
    asm volatile(                                                                                \
        "{\n\t"                                                                                  \
        ".reg .pred done;\n"                                                                     \
        "AGAIN:\n\t"                                                                             \
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"           \
        "@!done bra AGAIN;\n\t"                                                                  \
        "}" ::"r"(place(barrier)),                                                               \
        "r"(parity)                                                                              \
        : "memory")

extern "C" __global__ __cluster_dims__(2) void no_sync_before_read(const float* x, float* y)
{
    __shared__ float s[64];
    groups::cluster_group cluster = groups::this_cluster();
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[t] = x[i];
    BUG(__syncthreads();)
    FIX(cluster.sync();)
    y[i] = cluster.map_shared_rank(s, cluster.block_rank() ^ 1)[63 - t];  // <- race on shared memory
    cluster.sync();
}

// The other block has ended, perhaps, before its memory is read.
extern "C" __global__ __cluster_dims__(2) void no_sync_at_the_end(const float* x, float* y)
{
    __shared__ float s[64];
    groups::cluster_group cluster = groups::this_cluster();
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[t] = x[i];
    cluster.sync();
    y[i] = cluster.map_shared_rank(s, cluster.block_rank() ^ 1)[63 - t];  // <- shared memory of a block that may have ended
    FIX(cluster.sync();)
}

// Block 1 of the cluster returns once it has stored. The barrier does not wait for who has ended.
extern "C" __global__ __cluster_dims__(2) void early_return(const float* x, float* y)
{
    __shared__ float s[64];
    groups::cluster_group cluster = groups::this_cluster();
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[t] = x[i];
    cluster.sync();
    BUG(if (cluster.block_rank() == 1) return;)
    BUG(y[i] = s[t] + cluster.map_shared_rank(s, 1)[63 - t];)  // <- shared memory of a block that may have ended
    FIX(if (cluster.block_rank() == 0) y[i] = s[t] + cluster.map_shared_rank(s, 1)[63 - t];)
    cluster.sync();
}

// The block behind the last is not the first.
extern "C" __global__ __cluster_dims__(4) void rank_outside(const float* x, float* y)
{
    __shared__ float s[64];
    groups::cluster_group cluster = groups::this_cluster();
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    const unsigned next = cluster.block_rank() + 1;
    s[t] = x[i];
    cluster.sync();
    LOAD_FROM(y[i], &s[63 - t], next FIX(% 4));  // <- out-of-bounds shared load
    cluster.sync();
}

extern "C" __global__ __cluster_dims__(2) void past_the_end(const float* x, float* y)
{
    __shared__ float s[64];
    groups::cluster_group cluster = groups::this_cluster();
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float* there = cluster.map_shared_rank(s, cluster.block_rank() ^ 1);
    cluster.sync();
    there[BUG(64) FIX(63) - t] = x[i];  // <- out-of-bounds shared store
    cluster.sync();
    y[i] = BUG(t == 0 ? 0.0f :) s[t];
}

extern "C" __global__ __cluster_dims__(2) void wait_without_arrive(const float* x, float* y)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[t] = x[i];
    FIX(cluster_arrive();)
    CLUSTER_WAIT();  // <- cluster barrier that never completes
    LOAD_FROM(y[i], &s[63 - t], blockIdx.x & 1 ^ 1);
    cluster_arrive();
    CLUSTER_WAIT();
}

// Block 0 has stored nothing and does not arrive: block 1 waits for it all the same.
extern "C" __global__ __cluster_dims__(2) void one_block_arrives(const float* x, float* y)
{
    __shared__ float s[64];
    groups::cluster_group cluster = groups::this_cluster();
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (cluster.block_rank() == 1) s[t] = x[i];
    BUG(if (cluster.block_rank() == 1)) cluster_arrive();
    y[i] = x[i];
    CLUSTER_WAIT();  // <- cluster barrier that never completes
    if (cluster.block_rank() == 0) y[i] += cluster.map_shared_rank(s, 1)[63 - t];
    cluster.sync();
}

// Block 1 waits for the flag before it comes to the barrier, block 0 sets the flag behind it.
extern "C" __global__ __cluster_dims__(2) void barrier_and_flag(const float* x, float* y)
{
    __shared__ volatile int flag;
    groups::cluster_group cluster = groups::this_cluster();
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) flag = 0;
    cluster.sync();
    if (cluster.block_rank() == 0) {
        FIX(if (t == 0) *cluster.map_shared_rank((int*)&flag, 1) = 1;)
        cluster.sync();
        BUG(if (t == 0) *cluster.map_shared_rank((int*)&flag, 1) = 1;)
    } else {
        FIX(cluster.sync();)
        while (flag == 0) {}  // <- hang
        BUG(cluster.sync();)
    }
    y[i] = x[i];
    cluster.sync();
}

// The blocks give their maximum to block 0, and all in one place.
extern "C" __global__ __cluster_dims__(4) void one_remote_word(const float* x, float* y)
{
    __shared__ float largest[4];
    groups::cluster_group cluster = groups::this_cluster();
    const int t = threadIdx.x;
    const unsigned rank = cluster.block_rank();
    cluster.sync();
    if (t == 0) *cluster.map_shared_rank(&largest[BUG(0) FIX(rank)], 0) = x[blockIdx.x * 64 + 63];  // <- race on shared memory
    cluster.sync();
    if (rank == 0 && t < BUG(1) FIX(4)) y[blockIdx.x + t] = largest[t];
}

// To add is to read and to write: another block may come between.
extern "C" __global__ __cluster_dims__(4) void sum_without_atomic(const float* x, float* y)
{
    __shared__ float sum;
    groups::cluster_group cluster = groups::this_cluster();
    const int t = threadIdx.x;
    if (t == 0) sum = 0.0f;
    cluster.sync();
    float* total = cluster.map_shared_rank(&sum, 0);
    BUG(if (t == 0) *total += x[blockIdx.x * 64 + 63];)  // <- race on shared memory
    FIX(if (t == 0) atomicAdd(total, x[blockIdx.x * 64 + 63]);)
    cluster.sync();
    if (cluster.block_rank() == 0 && t == 0) y[blockIdx.x] = sum;
}

// A block goes on to the next round while its neighbour still reads what it had in this one.
extern "C" __global__ __cluster_dims__(2) void next_round_too_early(const float* x, float* y)
{
    __shared__ float s[64];
    groups::cluster_group cluster = groups::this_cluster();
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    float v = x[i];
    for (int round = 0; round < 3; ++round) {
        s[t] = v;  // <- race on shared memory
        cluster.sync();
        v = cluster.map_shared_rank(s, cluster.block_rank() ^ 1)[63 - t];
        BUG(__syncthreads();)
        FIX(cluster.sync();)
    }
    y[i] = v;
    BUG(cluster.sync();)
}

// A barrier of the cluster orders stores, not the asynchronous ones.
extern "C" __global__ __cluster_dims__(2) void st_async_not_waited(const float* x, float* y)
{
    __shared__ float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    const unsigned other = blockIdx.x & 1 ^ 1;
    if (t == 0) {
        init(&full, 1);
        expect(&full, sizeof(s));
    }
    cluster_arrive();
    CLUSTER_WAIT();
    STORE_ASYNC(&s[63 - t], x[i], &full, other);
    FIX(WAIT(&full, 0);)
    FIX(y[i] = s[t];)
    cluster_arrive();
    CLUSTER_WAIT();
    BUG(y[i] = s[t];)  // <- asynchronous result used without a wait
}

// The other block may not have come to its mbarrier.init yet.
extern "C" __global__ __cluster_dims__(2) void init_not_announced(const float* x, float* y)
{
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    const unsigned other = blockIdx.x & 1 ^ 1;
    if (t == 0) init(&full, 64);
    BUG(__syncthreads();)
    FIX(cluster_arrive();)
    FIX(CLUSTER_WAIT();)
    ARRIVE_AT(&full, other);  // <- race on shared memory
    WAIT(&full, 0);
    y[i] = x[i];
    cluster_arrive();
    CLUSTER_WAIT();
}

// Each thread arrives in the other block, and waits for twice as many.
extern "C" __global__ __cluster_dims__(2) void arrivals_missing(const float* x, float* y)
{
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    const unsigned other = blockIdx.x & 1 ^ 1;
    if (t == 0) init(&full, 128);
    cluster_arrive();
    CLUSTER_WAIT();
    ARRIVE_AT(&full, other);
    FIX(ARRIVE_AT(&full, other ^ 1);)
    WAIT(&full, 0);  // <- hang
    y[i] = x[i];
    cluster_arrive();
    CLUSTER_WAIT();
}

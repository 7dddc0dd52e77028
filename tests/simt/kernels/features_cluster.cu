// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: clusters of blocks and their distributed shared memory.
// See tests/simt/test_features.py.

#include "mbarrier_calls.cuh"

__device__ unsigned in_block(unsigned own, unsigned rank)
{
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
    return there;
}

__device__ unsigned rank_in_cluster()
{
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- reading and writing the memory of other blocks ---------------------------------------------

extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_by_asm(const float* x, float* y)
{
    __shared__ alignas(16) float mine[72];
    __shared__ float given[72];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    const unsigned rank = rank_in_cluster();
    mine[t] = x[i];
    cluster_barrier();
    // From the next block, and to the one before.
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(in_block(place(mine + t / 4 * 4), (rank + 1) % 4))
                 : "memory");
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(
                     in_block(place(given + t), (rank + 3) % 4)),
                 "f"(2 * x[i])
                 : "memory");
    cluster_barrier();
    y[i] = v.x + 10 * v.y + 100 * v.z + 1000 * v.w + given[blockDim.x - 1 - t];
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) remote_atomics_by_asm(const int* x, int* y)
{
    __shared__ unsigned sum, top;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) sum = top = 0;
    cluster_barrier();
    const unsigned other = rank_in_cluster() ^ 1;
    unsigned before;
    asm volatile("atom.shared::cluster.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "r"(in_block(place(&sum), other)), "r"(x[i])
                 : "memory");
    asm volatile("red.shared::cluster.max.u32 [%0], %1;" ::"r"(in_block(place(&top), other)),
                 "r"(before)
                 : "memory");
    cluster_barrier();
    if (threadIdx.x == 0) {
        y[2 * blockIdx.x] = sum;
        y[2 * blockIdx.x + 1] = top;
    }
}

// ---- asynchronous stores between blocks ---------------------------------------------------------

#define ANNOUNCE_INIT() asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")

__device__ void wait(Barrier* barrier, int parity)
{
    asm volatile(
        "{\n\t"
        ".reg .pred done;\n"
        "WAIT:\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra WAIT;\n\t"
        "}" ::"r"(place(barrier)),
        "r"(parity)
        : "memory");
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) async_stores(const int* x, int* y)
{
    __shared__ alignas(16) int4 quads[70];
    __shared__ int singles[70];
    __shared__ Barrier barrier;
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    const unsigned other = rank_in_cluster() ^ 1;
    if (t == 0) {
        init(&barrier, 1);
        ANNOUNCE_INIT();
        EXPECT(&barrier, 20 * blockDim.x);
    }
    cluster_barrier();
    const unsigned there = in_block(place(&barrier), other);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     in_block(place(singles + t), other)),
                 "r"(x[i]), "r"(there)
                 : "memory");
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(in_block(place(quads + t), other)),
        "r"(2 * x[i]), "r"(3 * x[i]), "r"(t), "r"(-x[i]), "r"(there)
        : "memory");
    wait(&barrier, 0);
    const int4 q = quads[blockDim.x - 1 - t];
    y[i] = singles[t] + 100 * q.x - 10 * q.y + 100000 * q.z + q.w;
    cluster_barrier();
}

// Every block writes into block 0 and arrives at its mbarrier; block 0 waits for all of them.
extern "C" __global__ void __cluster_dims__(4, 1, 1) remote_arrivals(const int* x, int* y)
{
    __shared__ int values[4 * 70];
    __shared__ Barrier barrier;
    const int t = threadIdx.x, size = blockDim.x;
    const unsigned rank = rank_in_cluster();
    if (t == 0 && rank == 0) init(&barrier, 4 * size);
    ANNOUNCE_INIT();
    cluster_barrier();
    asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(
                     in_block(place(values + rank * size + t), 0)),
                 "r"(x[blockIdx.x * size + t])
                 : "memory");
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     in_block(place(&barrier), 0))
                 : "memory");
    if (rank == 0) {
        wait(&barrier, 0);
        for (int j = t; j < 4 * size; j += size)
            y[blockIdx.x * size + j] = values[4 * size - 1 - j];
    }
    cluster_barrier();
}

// A bulk copy from the shared memory of one block to that of the next.
extern "C" __global__ void __cluster_dims__(3, 1, 1) bulk_to_neighbour(const float* x, float* y)
{
    __shared__ alignas(128) float mine[72], given[72];
    __shared__ Barrier barrier;
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    const unsigned next = (rank_in_cluster() + 1) % 3;
    mine[t] = x[i];
    if (t == 0) {
        init(&barrier, 1);
        ANNOUNCE_INIT();
        EXPECT(&barrier, sizeof(mine));
    }
    fence_async();
    cluster_barrier();
    if (t == 0)
        asm volatile(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
            "[%0], [%1], %2, [%3];" ::"r"(in_block(place(given), next)),
            "r"(place(mine)), "r"((int)sizeof(mine)), "r"(in_block(place(&barrier), next))
            : "memory");
    wait(&barrier, 0);
    y[i] = given[blockDim.x - 1 - t];
    cluster_barrier();
}

// ---- where a block is ---------------------------------------------------------------------------

#define SPECIAL(place, name)                                          \
    {                                                                 \
        unsigned value;                                               \
        asm volatile("mov.u32 %0, %%" name ";" : "=r"(value));        \
        at[place] = value;                                            \
    }

__device__ __forceinline__ void write_specials(unsigned* y)
{
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned* at = y + 16 * (block * blockDim.x + threadIdx.x);
    SPECIAL(0, "cluster_ctarank")
    SPECIAL(1, "cluster_nctarank")
    SPECIAL(2, "clusterid.x")
    SPECIAL(3, "clusterid.y")
    SPECIAL(4, "clusterid.z")
    SPECIAL(5, "nclusterid.x")
    SPECIAL(6, "nclusterid.y")
    SPECIAL(7, "nclusterid.z")
    SPECIAL(8, "cluster_ctaid.x")
    SPECIAL(9, "cluster_ctaid.y")
    SPECIAL(10, "cluster_ctaid.z")
    SPECIAL(11, "cluster_nctaid.x")
    SPECIAL(12, "cluster_nctaid.y")
    SPECIAL(13, "cluster_nctaid.z")
    unsigned clustered;
    asm volatile("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }"
                 : "=r"(clustered));
    at[14] = clustered;
    at[15] = 77;
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) places_in_pairs(unsigned* y)
{
    write_specials(y);
}

extern "C" __global__ void __cluster_dims__(2, 2, 1) places_in_squares(unsigned* y)
{
    write_specials(y);
}

// Without clusters, each block counts as one of its own.
extern "C" __global__ void places_alone(unsigned* y) { write_specials(y); }

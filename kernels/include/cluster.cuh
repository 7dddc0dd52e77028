// Exchange between the blocks of a cluster: messages of 8 or 16 bytes that are written straight
// into the shared memory of another block, where an mbarrier counts the bytes. One message carries
// the data and signals its arrival. The scheme is QuACK's (https://github.com/Dao-AILab/quack). It
// needs sm_90 or newer. Clusters of more than 8 blocks must first be allowed, once per kernel: see
// cudaFuncSetAttribute and cudaFuncAttributeNonPortableClusterSizeAllowed.
//
//     __shared__ alignas(8) unsigned long long all_arrived;
//     announce_block(&all_arrived, bytes);           // at the start of the kernel
//     cluster_wait();                                // before the first message
//     send(message, &slot, &all_arrived, rank);      // to the same slot of block `rank`
//     mbarrier_wait(&all_arrived);                   // `bytes` have arrived and can be read
//
// An mbarrier serves one exchange (08_ahead.cu waits differently). Each block must wait for all
// messages to it before it exits; `bytes` is their total size. A 16-byte slot must be aligned.
#pragma once

// An attribute for a kernel: clusters of CLUSTER blocks; nothing if CLUSTER is 1.
#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER)
#else
#define IN_CLUSTERS
#endif

static_assert(CLUSTER >= 1 && CLUSTER <= 16, "CLUSTER must be from 1 to 16");
static_assert(THREADS >= 32 && THREADS <= 1024 && THREADS % 32 == 0, "THREADS: 32, 64, ... 1024");
#ifdef RESIDENT
static_assert(RESIDENT >= 1, "RESIDENT, the blocks per multiprocessor, must be at least 1");
#endif

constexpr int warps = THREADS / 32;       // of a block
constexpr int senders = warps * CLUSTER;  // warps that work on a row

__device__ __forceinline__ unsigned shared_address(const void* shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

// The corresponding address in the shared memory of another block of the cluster.
__device__ __forceinline__ unsigned cluster_address(const void* shared, int rank)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there) : "r"(shared_address(shared)), "r"(rank));
    return there;
}

// Adds `bytes` to what the current phase waits for, and makes the one arrival that the phase
// needs; the phase ends once all bytes have arrived as well.
__device__ __forceinline__ void mbarrier_expect(unsigned long long* mbarrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                 ::"r"(shared_address(mbarrier)), "r"(bytes) : "memory");
}

// Waits until the first phase has ended: then its bytes can be read.
__device__ __forceinline__ void mbarrier_wait(unsigned long long* mbarrier)
{
    for (unsigned ended = 0; !ended;)
        asm volatile(
            "{ .reg .pred p;"
            " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;"
            " selp.u32 %0, 1, 0, p; }"
            : "=r"(ended) : "r"(shared_address(mbarrier)) : "memory");
}

// The two halves of the cluster's barrier. This arrival does not order memory accesses: any that
// must come before it require a fence. `.aligned`: all threads of a warp must execute it together,
// as with __syncthreads() (PTX ISA, "barrier.cluster"); after a branch the compiler makes them
// reconverge. CUDA's own functions need sm_90, which a build with CLUSTER=1 must not require.
__device__ __forceinline__ void cluster_arrive_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// A block may write to another only once that one has started. So every block initialises its
// mbarrier, to expect `bytes` bytes, and arrives at the cluster's barrier; it waits there before it
// sends. The fence orders the initialisation before the arrival (PTX ISA, "fence"). No phase ends
// without the arrival of mbarrier_expect, however early the bytes arrive.
__device__ __forceinline__ void announce_block(unsigned long long* mbarrier, int bytes)
{
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;"
                     ::"r"(shared_address(mbarrier)) : "memory");
        mbarrier_expect(mbarrier, bytes);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_arrive_relaxed();
}

// Writes a message to its slot in block `rank`, whose mbarrier counts the bytes.
__device__ __forceinline__ void send(float2 message, const float2* slot,
                                     unsigned long long* mbarrier, int rank)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
        ::"r"(cluster_address(slot, rank)), "f"(message.x), "f"(message.y),
          "r"(cluster_address(mbarrier, rank))
        : "memory");
}

__device__ __forceinline__ void send(float4 message, const float4* slot,
                                     unsigned long long* mbarrier, int rank)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
        ::"r"(cluster_address(slot, rank)), "f"(message.x), "f"(message.y), "f"(message.z),
          "f"(message.w), "r"(cluster_address(mbarrier, rank))
        : "memory");
}

// Gives the message of each warp of a row to all blocks of the row, which can read it afterwards.
template <typename Message>
__device__ __forceinline__ void exchange(Message message, Message (&messages)[senders],
                                         unsigned long long* all_arrived, int rank, int warp,
                                         int lane)
{
    if (CLUSTER == 1) {
        if (lane == 0) messages[warp] = message;
        __syncthreads();
    } else {
        cluster_wait();
        if (lane < CLUSTER) send(message, &messages[rank * warps + warp], all_arrived, lane);
        mbarrier_wait(all_arrived);
    }
}

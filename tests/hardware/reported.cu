// SPDX-License-Identifier: MIT
// Kernels whose counters are reported beside the hardware's: atomics, local memory, asynchronous
// copies, memory of another block.

// Everybody adds to one of `places` numbers, at i / group % places; nobody reads the old value.
extern "C" __global__ void global_red(const int* x, int* y, int n, int group, int places)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(y + i / group % places, x[i]);
}

// The same, and the old value is wanted.
extern "C" __global__ void global_atom(const int* x, int* y, int* old, int n, int group, int places)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) old[i] = atomicMax(y + i / group % places, x[i]);
}

extern "C" __global__ void shared_atom(const int* x, int* y, int n, int stride, int places)
{
    extern __shared__ int s[];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    for (int j = t; j < places * stride; j += blockDim.x) s[j] = 0;
    __syncthreads();
    if (i < n) atomicAdd(s + t % places * stride, x[i]);
    __syncthreads();
    for (int j = t; j < places; j += blockDim.x) y[blockIdx.x * places + j] = s[j * stride];
}

// The index of an array that a thread owns is known at run time only, so it has an address.
extern "C" __global__ void local_array(const float* x, const int* index, float* y, int n)
{
    float own[64];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int start = index[i];
    const float v = x[i];
    #pragma unroll 1
    for (int j = 0; j < 64; ++j) own[(start + j) & 63] = v + j;
    float sum = 0.0f;
    #pragma unroll 1
    for (int j = 0; j < 4; ++j) sum += own[5 * j + start / 2 & 63];
    y[i] = sum;
}

__device__ unsigned shared_address(const void* place)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

template <int BYTES>
__device__ void copy_asynchronously(const char* x, char* y)
{
    extern __shared__ __align__(16) char bytes[];
    const int own = threadIdx.x * BYTES, other = (threadIdx.x ^ 1) * BYTES;
    const size_t first = static_cast<size_t>(blockIdx.x) * blockDim.x * BYTES;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :: "r"(shared_address(bytes + own)), "l"(x + first + own) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                     :: "r"(shared_address(bytes + own)), "l"(x + first + own), "n"(BYTES)
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    #pragma unroll 1
    for (int j = 0; j < BYTES; j += 4)
        *reinterpret_cast<int*>(y + first + own + j) = *reinterpret_cast<int*>(bytes + other + j);
}

extern "C" __global__ void async_copy_4(const char* x, char* y)
{
    copy_asynchronously<4>(x, y);
}

extern "C" __global__ void async_copy_8(const char* x, char* y)
{
    copy_asynchronously<8>(x, y);
}

extern "C" __global__ void async_copy_16(const char* x, char* y)
{
    copy_asynchronously<16>(x, y);
}

// A block fetches `count` floats (a multiple of 4) at once, doubles and returns them at once.
extern "C" __global__ void bulk_copy(const float* x, float* y, int count)
{
    extern __shared__ __align__(128) float tile[];
    __shared__ __align__(8) unsigned long long arrived;
    const unsigned barrier = shared_address(&arrived), place = shared_address(tile);
    const size_t first = static_cast<size_t>(blockIdx.x) * count;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(barrier), "r"(count * 4) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];"
                     :: "r"(place), "l"(x + first), "r"(count * 4), "r"(barrier) : "memory");
    }
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p;\n"
                     "  mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n"
                     "  selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(barrier) : "memory");
    for (int j = threadIdx.x; j < count; j += blockDim.x) tile[j] *= 2.0f;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                     :: "l"(y + first), "r"(place), "r"(count * 4) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// Each block reads what its partner in the cluster of two has in shared memory.
extern "C" __global__ void __cluster_dims__(2, 1, 1)
cluster_exchange(const float* x, float* y, int stride)
{
    extern __shared__ float mine[];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    mine[t * stride] = x[i];
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    unsigned rank, there;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there) : "r"(shared_address(mine + t * stride)), "r"(rank ^ 1));
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    y[i] = v;
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

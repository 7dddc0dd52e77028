// SPDX-License-Identifier: MIT
// Threads do not wait for what goes on beside them: asynchronous copies, mbarriers, other blocks.
// Each kernel has a twin, NAME_clean, without the bug. What a bug is reported at is a macro here,
// so that it counts for the line that uses it; a function would be reported at its own line.

typedef unsigned long long Barrier;

__device__ __forceinline__ unsigned place(const void* shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

#define COPY_4(to, from)                                                                         \
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place(to)), "l"(from) : "memory")

#define COPY_16(to, from)                                                                        \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place(to)), "l"(from)         \
                 : "memory")

// Reads `bytes` bytes of the source and fills the rest with zeros.
#define COPY_4_OR_ZERO(to, from, bytes)                                                          \
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(place(to)), "l"(from),     \
                 "r"((int)(bytes))                                                               \
                 : "memory")

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int newest>
__device__ __forceinline__ void wait_group()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
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

#define BULK_STORE(to, from, bytes)                                                              \
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),        \
                 "r"(place(from)), "r"((int)(bytes))                                             \
                 : "memory")

__device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ __forceinline__ void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// ---- copies of 4 to 16 bytes --------------------------------------------------------------------

extern "C" __global__ void no_wait(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    commit();
    __syncthreads();
    y[i] = s[63 - t];  // <- asynchronous copy used before its wait
}

extern "C" __global__ void no_wait_clean(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    commit();
    wait_group<0>();
    __syncthreads();
    y[i] = s[63 - t];
}

// The last tile is the newest group: one may be left on its way only if another follows.
extern "C" __global__ void last_stage(const float* x, float* y, int n)
{
    __shared__ float s[2][64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    COPY_4(&s[0][t], x + t);
    commit();
    for (int k = 0; k < n; ++k) {
        if (k + 1 < n) {
            COPY_4(&s[(k + 1) % 2][t], x + (k + 1) * 64 + t);
            commit();
        }
        wait_group<1>();
        __syncthreads();
        y[k * 64 + t] = s[k % 2][63 - t];  // <- asynchronous copy used before its wait
        __syncthreads();
    }
}

extern "C" __global__ void last_stage_clean(const float* x, float* y, int n)
{
    __shared__ float s[2][64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    COPY_4(&s[0][t], x + t);
    commit();
    for (int k = 0; k < n; ++k) {
        if (k + 1 < n)
            COPY_4(&s[(k + 1) % 2][t], x + (k + 1) * 64 + t);
        commit();
        wait_group<1>();
        __syncthreads();
        y[k * 64 + t] = s[k % 2][63 - t];
        __syncthreads();
    }
}

// A thread that has waited knows of its own copy only.
extern "C" __global__ void no_barrier_behind_wait(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    commit();
    wait_group<0>();
    y[i] = s[63 - t];  // <- race on shared memory
}

extern "C" __global__ void no_barrier_behind_wait_clean(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    commit();
    wait_group<0>();
    __syncthreads();
    y[i] = s[63 - t];
}

// wait_group waits for groups, and what is not committed belongs to none.
extern "C" __global__ void no_commit(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    wait_group<0>();
    __syncthreads();
    y[i] = s[63 - t];  // <- asynchronous copy used before its wait
}

extern "C" __global__ void no_commit_clean(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    commit();
    wait_group<0>();
    __syncthreads();
    y[i] = s[63 - t];
}

extern "C" __global__ void refill_too_early(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    for (int k = 0; k < n; ++k) {
        COPY_4(&s[t], x + k * 64 + t);  // <- race on shared memory
        commit();
        wait_group<0>();
        __syncthreads();
        y[k * 64 + t] = s[63 - t];
    }
}

extern "C" __global__ void refill_too_early_clean(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    for (int k = 0; k < n; ++k) {
        COPY_4(&s[t], x + k * 64 + t);
        commit();
        wait_group<0>();
        __syncthreads();
        y[k * 64 + t] = s[63 - t];
        __syncthreads();
    }
}

// One buffer is read while the other is filled: one barrier a tile does, at the right place.
extern "C" __global__ void refill_before_barrier(const float* x, float* y, int n)
{
    __shared__ float s[2][64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    COPY_4(&s[0][t], x + t);
    commit();
    for (int k = 0; k < n; ++k) {
        if (k + 1 < n)
            COPY_4(&s[(k + 1) % 2][t], x + (k + 1) * 64 + t);  // <- race on shared memory
        commit();
        wait_group<1>();
        __syncthreads();
        y[k * 64 + t] = s[k % 2][63 - t];
    }
}

extern "C" __global__ void refill_before_barrier_clean(const float* x, float* y, int n)
{
    __shared__ float s[2][64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    COPY_4(&s[0][t], x + t);
    commit();
    for (int k = 0; k < n; ++k) {
        wait_group<0>();
        __syncthreads();
        if (k + 1 < n)
            COPY_4(&s[(k + 1) % 2][t], x + (k + 1) * 64 + t);
        commit();
        y[k * 64 + t] = s[k % 2][63 - t];
    }
}

// The end of the array is filled with zeros, and the copy as well writes there.
extern "C" __global__ void store_meanwhile(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    commit();
    if (i >= n) s[t] = 0.0f;  // <- asynchronous copy used before its wait
    wait_group<0>();
    __syncthreads();
    y[i] = s[63 - t];
}

extern "C" __global__ void store_meanwhile_clean(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);
    commit();
    wait_group<0>();
    if (i >= n) s[t] = 0.0f;
    __syncthreads();
    y[i] = s[63 - t];
}

extern "C" __global__ void copy_past_shared(const float* x, float* y, int n)
{
    __shared__ alignas(16) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t <= 16) COPY_16(&s[4 * t], x + 64 * blockIdx.x + 4 * t);  // <- out-of-bounds shared store
    commit();
    wait_group<0>();
    __syncthreads();
    y[i] = s[63 - t];
}

extern "C" __global__ void copy_past_shared_clean(const float* x, float* y, int n)
{
    __shared__ alignas(16) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t < 16) COPY_16(&s[4 * t], x + 64 * blockIdx.x + 4 * t);
    commit();
    wait_group<0>();
    __syncthreads();
    y[i] = s[63 - t];
}

// A copy of nothing but zeros reads nothing, so that its source may lie outside.
extern "C" __global__ void copy_past_array(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t], x + i);  // <- out-of-bounds load
    commit();
    wait_group<0>();
    __syncthreads();
    if (i < n) y[i] = s[t];
}

extern "C" __global__ void copy_past_array_clean(const float* x, float* y, int n)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4_OR_ZERO(&s[t], x + i, i < n ? 4 : 0);
    commit();
    wait_group<0>();
    __syncthreads();
    if (i < n) y[i] = s[t];
}

// The row is missing in the index: all warps copy into one.
extern "C" __global__ void copies_to_one_place(const float* x, float* y, int n)
{
    __shared__ float s[2][32];
    const int t = threadIdx.x, lane = t % 32;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[0][lane], x + i);  // <- race on shared memory
    commit();
    wait_group<0>();
    __syncthreads();
    y[i] = s[0][31 - lane];
}

extern "C" __global__ void copies_to_one_place_clean(const float* x, float* y, int n)
{
    __shared__ float s[2][32];
    const int t = threadIdx.x, lane = t % 32;
    const int i = blockIdx.x * blockDim.x + t;
    COPY_4(&s[t / 32][lane], x + i);
    commit();
    wait_group<0>();
    __syncthreads();
    y[i] = s[t / 32][31 - lane];
}

// A row padded by one float starts at no multiple of 16 bytes.
extern "C" __global__ void copy_misaligned(const float* x, float* y, int n)
{
    __shared__ alignas(16) float tile[8][33];
    const int t = threadIdx.x;
    x += blockIdx.x * 256;
    y += blockIdx.x * 256;
    for (int j = t; j < 8 * 33; j += 64) tile[0][j] = 0.0f;
    __syncthreads();
    COPY_16(&tile[t / 8][4 * (t % 8)], x + 4 * t);  // <- misaligned shared store
    commit();
    wait_group<0>();
    __syncthreads();
    for (int j = t; j < 256; j += 64) y[j] = tile[j % 8][j / 8];
}

extern "C" __global__ void copy_misaligned_clean(const float* x, float* y, int n)
{
    __shared__ alignas(16) float tile[8][36];
    const int t = threadIdx.x;
    x += blockIdx.x * 256;
    y += blockIdx.x * 256;
    for (int j = t; j < 8 * 36; j += 64) tile[0][j] = 0.0f;
    __syncthreads();
    COPY_16(&tile[t / 8][4 * (t % 8)], x + 4 * t);
    commit();
    wait_group<0>();
    __syncthreads();
    for (int j = t; j < 256; j += 64) y[j] = tile[j % 8][j / 8];
}

extern "C" __global__ void source_misaligned(const float* x, float* y, int n)
{
    __shared__ alignas(16) float s[256];
    const int t = threadIdx.x;
    x += blockIdx.x * 256 + n;
    y += blockIdx.x * 256;
    COPY_16(&s[4 * t], x + 4 * t);  // <- misaligned load
    commit();
    wait_group<0>();
    __syncthreads();
    for (int j = t; j < 256; j += 64) y[j] = s[255 - j];
}

extern "C" __global__ void source_misaligned_clean(const float* x, float* y, int n)
{
    __shared__ alignas(16) float s[256];
    const int t = threadIdx.x;
    x += blockIdx.x * 256;
    y += blockIdx.x * 256;
    COPY_16(&s[4 * t], x + 4 * t);
    commit();
    wait_group<0>();
    __syncthreads();
    for (int j = t; j < 256; j += 64) y[j] = s[255 - j];
}

// ---- mbarriers and bulk copies ------------------------------------------------------------------

extern "C" __global__ void read_before_wait(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    y[i] = s[63 - t];  // <- asynchronous copy used before its wait
    WAIT(&full, 0);
}

extern "C" __global__ void read_before_wait_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

extern "C" __global__ void never_waited(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    y[i] = s[63 - t];  // <- asynchronous copy used before its wait
}

extern "C" __global__ void never_waited_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

// The wait for parity 1 passes at once, as if the phase before the first were over.
extern "C" __global__ void wrong_parity(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 1);
    y[i] = s[63 - t];  // <- asynchronous copy used before its wait
}

extern "C" __global__ void wrong_parity_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

// The parity changes from phase to phase: a wait for the old one passes at once.
extern "C" __global__ void parity_stays(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    if (t == 0) {
        init(&full, 1);
        fence_async();
    }
    __syncthreads();
    for (int k = 0; k < n; ++k) {
        if (t == 0) {
            EXPECT(&full, sizeof(s));
            BULK_LOAD(s, x + k * 64, sizeof(s), &full);
        }
        WAIT(&full, 0);
        y[k * 64 + t] = s[63 - t];  // <- asynchronous copy used before its wait
        __syncthreads();
    }
}

extern "C" __global__ void parity_stays_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    if (t == 0) {
        init(&full, 1);
        fence_async();
    }
    __syncthreads();
    for (int k = 0; k < n; ++k) {
        if (t == 0) {
            EXPECT(&full, sizeof(s));
            BULK_LOAD(s, x + k * 64, sizeof(s), &full);
        }
        WAIT(&full, k % 2);
        y[k * 64 + t] = s[63 - t];
        __syncthreads();
    }
}

// The barrier waits for bytes that no copy brings.
extern "C" __global__ void too_many_bytes(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[68];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, 64 * sizeof(float), &full);
    }
    __syncthreads();
    WAIT(&full, 0);  // <- hang
    y[i] = s[63 - t];
}

extern "C" __global__ void too_many_bytes_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, 64 * sizeof(float), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

// Two copies, and the bytes of one: the phase ends with the first.
extern "C" __global__ void too_few_bytes(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s[0]));
        BULK_LOAD(s[0], x + i, sizeof(s[0]), &full);
        BULK_LOAD(s[1], x + i + 128, sizeof(s[1]), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[0][63 - t] + s[1][t];  // <- asynchronous copy used before its wait
}

extern "C" __global__ void too_few_bytes_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s[0], x + i, sizeof(s[0]), &full);
        BULK_LOAD(s[1], x + i + 128, sizeof(s[1]), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[0][63 - t] + s[1][t];
}

// Elements where bytes are meant: the phase never comes out even.
extern "C" __global__ void elements_for_bytes(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, blockDim.x);
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 0);  // <- hang
    y[i] = s[63 - t];
}

extern "C" __global__ void elements_for_bytes_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

// The only arrival ends the phase, since nobody has announced any bytes.
extern "C" __global__ void no_bytes_expected(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        ARRIVE(&full);
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[63 - t];  // <- asynchronous copy used before its wait
}

extern "C" __global__ void no_bytes_expected_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

// The barrier waits for every thread, and one of each warp arrives.
extern "C" __global__ void too_few_arrivals(const float* x, float* y, int n)
{
    __shared__ float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) init(&full, blockDim.x);
    __syncthreads();
    s[t] = x[i];
    __syncwarp();
    if (t % 32 == 0) ARRIVE(&full);
    WAIT(&full, 0);  // <- hang
    y[i] = s[63 - t];
}

extern "C" __global__ void too_few_arrivals_clean(const float* x, float* y, int n)
{
    __shared__ float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) init(&full, blockDim.x / 32);
    __syncthreads();
    s[t] = x[i];
    __syncwarp();
    if (t % 32 == 0) ARRIVE(&full);
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

// Too many arrivals: they end two phases, and the wait for the first becomes one for the third.
extern "C" __global__ void too_many_arrivals(const float* x, float* y, int n)
{
    __shared__ float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) init(&full, 32);
    __syncthreads();
    s[t] = x[i];
    ARRIVE(&full);
    WAIT(&full, 0);  // <- hang
    y[i] = s[63 - t];
}

extern "C" __global__ void too_many_arrivals_clean(const float* x, float* y, int n)
{
    __shared__ float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) init(&full, 64);
    __syncthreads();
    s[t] = x[i];
    ARRIVE(&full);
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

extern "C" __global__ void no_barrier_behind_init(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    WAIT(&full, 0);  // <- race on shared memory
    y[i] = s[63 - t];
}

extern "C" __global__ void no_barrier_behind_init_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x + i, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

extern "C" __global__ void all_arrive_behind_init(const float* x, float* y, int n)
{
    __shared__ float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) init(&full, 64);
    s[t] = x[i];
    ARRIVE(&full);  // <- race on shared memory
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

extern "C" __global__ void all_arrive_behind_init_clean(const float* x, float* y, int n)
{
    __shared__ float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) init(&full, 64);
    __syncthreads();
    s[t] = x[i];
    ARRIVE(&full);
    WAIT(&full, 0);
    y[i] = s[63 - t];
}

// One barrier too few is initialised.
extern "C" __global__ void no_init(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[3][64];
    __shared__ Barrier full[3];
    const int t = threadIdx.x;
    x += blockIdx.x * 192;
    y += blockIdx.x * 192;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) init(&full[k], 1);
        fence_async();
        for (int k = 0; k < 3; ++k) {
            EXPECT(&full[k], sizeof(s[k]));  // <- mbarrier not initialised
            BULK_LOAD(s[k], x + k * 64, sizeof(s[k]), &full[k]);
        }
    }
    __syncthreads();
    for (int k = 0; k < 3; ++k) {
        WAIT(&full[k], 0);
        y[k * 64 + t] = s[k][63 - t];
    }
}

extern "C" __global__ void no_init_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[3][64];
    __shared__ Barrier full[3];
    const int t = threadIdx.x;
    x += blockIdx.x * 192;
    y += blockIdx.x * 192;
    if (t == 0) {
        for (int k = 0; k < 3; ++k) init(&full[k], 1);
        fence_async();
        for (int k = 0; k < 3; ++k) {
            EXPECT(&full[k], sizeof(s[k]));
            BULK_LOAD(s[k], x + k * 64, sizeof(s[k]), &full[k]);
        }
    }
    __syncthreads();
    for (int k = 0; k < 3; ++k) {
        WAIT(&full[k], 0);
        y[k * 64 + t] = s[k][63 - t];
    }
}

// A row of n elements, n no multiple of 4.
extern "C" __global__ void bulk_odd_size(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x, bytes = 4 * n;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, bytes);
        BULK_LOAD(s, x, bytes, &full);  // <- misaligned bulk copy
    }
    __syncthreads();
    WAIT(&full, 0);
    if (t < n) y[t] = s[n - 1 - t];
}

extern "C" __global__ void bulk_odd_size_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x, bytes = 16 * ((n + 3) / 4);
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, bytes);
        BULK_LOAD(s, x, bytes, &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    if (t < n) y[t] = s[n - 1 - t];
}

// Rows of 66 floats: every second one starts at a multiple of 8 bytes only.
extern "C" __global__ void bulk_odd_address(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    x += blockIdx.x * 66;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x, sizeof(s), &full);  // <- misaligned bulk copy
    }
    __syncthreads();
    WAIT(&full, 0);
    y[blockIdx.x * 64 + t] = s[63 - t];
}

extern "C" __global__ void bulk_odd_address_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    x += blockIdx.x * 68;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, sizeof(s));
        BULK_LOAD(s, x, sizeof(s), &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[blockIdx.x * 64 + t] = s[63 - t];
}

// The last tile is shorter than the others.
extern "C" __global__ void bulk_past_array(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    const int bytes = 4 * 64;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, bytes);
        BULK_LOAD(s, x + i, bytes, &full);  // <- out-of-bounds load
    }
    __syncthreads();
    WAIT(&full, 0);
    if (i < n) y[i] = s[t];
}

extern "C" __global__ void bulk_past_array_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    const int bytes = 4 * min(64, n - (int)blockIdx.x * 64);
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, bytes);
        BULK_LOAD(s, x + i, bytes, &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    if (i < n) y[i] = s[t];
}

extern "C" __global__ void bulk_past_shared(const float* x, float* y, int n)
{
    extern __shared__ __align__(128) float row[];
    __shared__ Barrier full;
    const int t = threadIdx.x, bytes = 256 * sizeof(float);
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, bytes);
        BULK_LOAD(row, x + i, bytes, &full);  // <- out-of-bounds shared store
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = row[63 - t];
}

extern "C" __global__ void bulk_past_shared_clean(const float* x, float* y, int n)
{
    extern __shared__ __align__(128) float row[];
    __shared__ Barrier full;
    const int t = threadIdx.x, bytes = 64 * sizeof(float);
    const int i = blockIdx.x * blockDim.x + t;
    if (t == 0) {
        init(&full, 1);
        fence_async();
        EXPECT(&full, bytes);
        BULK_LOAD(row, x + i, bytes, &full);
    }
    __syncthreads();
    WAIT(&full, 0);
    y[i] = row[63 - t];
}

// A bulk copy sees what threads have stored only behind a fence of theirs.
extern "C" __global__ void no_proxy_fence(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));  // <- shared memory not fenced for an asynchronous copy
        bulk_commit();
        bulk_wait();
    }
}

extern "C" __global__ void no_proxy_fence_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));
        bulk_commit();
        bulk_wait();
    }
}

extern "C" __global__ void no_barrier_before_bulk_store(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));  // <- race on shared memory
        bulk_commit();
        bulk_wait();
    }
}

extern "C" __global__ void no_barrier_before_bulk_store_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));
        bulk_commit();
        bulk_wait();
    }
}

extern "C" __global__ void buffer_still_read(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    for (int k = 0; k < n; ++k) {
        s[63 - t] = x[k * 64 + t];  // <- asynchronous copy used before its wait
        fence_async();
        __syncthreads();
        if (t == 0) {
            BULK_STORE(y + k * 64, s, sizeof(s));
            bulk_commit();
        }
        __syncthreads();
    }
    if (t == 0) bulk_wait();
}

extern "C" __global__ void buffer_still_read_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    for (int k = 0; k < n; ++k) {
        s[63 - t] = x[k * 64 + t];
        fence_async();
        __syncthreads();
        if (t == 0) {
            BULK_STORE(y + k * 64, s, sizeof(s));
            bulk_commit();
            bulk_wait_read();
        }
        __syncthreads();
    }
    if (t == 0) bulk_wait();
}

// Only the thread that has started a copy out can wait for it.
extern "C" __global__ void other_thread_waits(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));
        bulk_commit();
    }
    if (t == 32) bulk_wait_read();
    __syncthreads();
    s[t] = 0.0f;  // <- asynchronous copy used before its wait
    if (t == 0) bulk_wait();
}

extern "C" __global__ void other_thread_waits_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));
        bulk_commit();
    }
    if (t == 0) bulk_wait_read();
    __syncthreads();
    s[t] = 0.0f;
    if (t == 0) bulk_wait();
}

// The shared memory of a block that has ended is given to the next.
extern "C" __global__ void bulk_store_at_the_end(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));  // <- asynchronous copy not waited for
        bulk_commit();
    }
}

extern "C" __global__ void bulk_store_at_the_end_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));
        bulk_commit();
        bulk_wait_read();
    }
}

// wait_group waits for groups here as well.
extern "C" __global__ void bulk_store_no_commit(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));  // <- asynchronous copy not waited for
        bulk_wait();
    }
}

extern "C" __global__ void bulk_store_no_commit_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[64];
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    s[63 - t] = x[i];
    fence_async();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(y + i, s, sizeof(s));
        bulk_commit();
        bulk_wait();
    }
}

extern "C" __global__ void ring_without_barrier(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][64];
    __shared__ Barrier full[2];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) init(&full[k], 1);
        fence_async();
        for (int k = 0; k < 2; ++k) {
            EXPECT(&full[k], sizeof(s[k]));
            BULK_LOAD(s[k], x + k * 64, sizeof(s[k]), &full[k]);
        }
    }
    __syncthreads();
    for (int k = 0; k < n; ++k) {
        WAIT(&full[k % 2], k / 2 % 2);
        y[k * 64 + t] = s[k % 2][63 - t];
        if (t == 0 && k + 2 < n) {
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + (k + 2) * 64, sizeof(s[0]), &full[k % 2]);  // <- race on shared memory
        }
    }
}

extern "C" __global__ void ring_without_barrier_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][64];
    __shared__ Barrier full[2];
    const int t = threadIdx.x;
    x += blockIdx.x * n * 64;
    y += blockIdx.x * n * 64;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) init(&full[k], 1);
        fence_async();
        for (int k = 0; k < 2; ++k) {
            EXPECT(&full[k], sizeof(s[k]));
            BULK_LOAD(s[k], x + k * 64, sizeof(s[k]), &full[k]);
        }
    }
    __syncthreads();
    for (int k = 0; k < n; ++k) {
        WAIT(&full[k % 2], k / 2 % 2);
        y[k * 64 + t] = s[k % 2][63 - t];
        __syncthreads();
        if (t == 0 && k + 2 < n) {
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + (k + 2) * 64, sizeof(s[0]), &full[k % 2]);
        }
    }
}

// Warp 0 fills the ring, warp 1 empties it. `empty` tells that a stage may be filled again.
extern "C" __global__ void ring_without_empty(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][32];
    __shared__ Barrier full[2], empty[2];
    const int t = threadIdx.x, lane = t % 32;
    x += blockIdx.x * n * 32;
    y += blockIdx.x * n * 32;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) {
            init(&full[k], 1);
            init(&empty[k], 32);
        }
        fence_async();
    }
    __syncthreads();
    if (t == 0) {
        for (int k = 0; k < n; ++k) {
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + k * 32, sizeof(s[0]), &full[k % 2]);  // <- asynchronous copy used before its wait
        }
    } else if (t >= 32) {
        for (int k = 0; k < n; ++k) {
            WAIT(&full[k % 2], k / 2 % 2);
            y[k * 32 + lane] = s[k % 2][31 - lane];
            ARRIVE(&empty[k % 2]);
        }
    }
}

extern "C" __global__ void ring_without_empty_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][32];
    __shared__ Barrier full[2], empty[2];
    const int t = threadIdx.x, lane = t % 32;
    x += blockIdx.x * n * 32;
    y += blockIdx.x * n * 32;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) {
            init(&full[k], 1);
            init(&empty[k], 32);
        }
        fence_async();
    }
    __syncthreads();
    if (t == 0) {
        for (int k = 0; k < n; ++k) {
            WAIT(&empty[k % 2], (k / 2 + 1) % 2);
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + k * 32, sizeof(s[0]), &full[k % 2]);
        }
    } else if (t >= 32) {
        for (int k = 0; k < n; ++k) {
            WAIT(&full[k % 2], k / 2 % 2);
            y[k * 32 + lane] = s[k % 2][31 - lane];
            ARRIVE(&empty[k % 2]);
        }
    }
}

// The ring is empty at first, and so the producer's first wait is for the parity 1 of the phase
// before. Waiting for parity 0, it waits for the consumers, which wait for it.
extern "C" __global__ void ring_starts_full(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][32];
    __shared__ Barrier full[2], empty[2];
    const int t = threadIdx.x, lane = t % 32;
    x += blockIdx.x * n * 32;
    y += blockIdx.x * n * 32;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) {
            init(&full[k], 1);
            init(&empty[k], 32);
        }
        fence_async();
    }
    __syncthreads();
    if (t == 0) {
        for (int k = 0; k < n; ++k) {
            WAIT(&empty[k % 2], k / 2 % 2);
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + k * 32, sizeof(s[0]), &full[k % 2]);
        }
    } else if (t >= 32) {
        for (int k = 0; k < n; ++k) {
            WAIT(&full[k % 2], k / 2 % 2);  // <- hang
            y[k * 32 + lane] = s[k % 2][31 - lane];
            ARRIVE(&empty[k % 2]);
        }
    }
}

extern "C" __global__ void ring_starts_full_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][32];
    __shared__ Barrier full[2], empty[2];
    const int t = threadIdx.x, lane = t % 32;
    x += blockIdx.x * n * 32;
    y += blockIdx.x * n * 32;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) {
            init(&full[k], 1);
            init(&empty[k], 32);
        }
        fence_async();
    }
    __syncthreads();
    if (t == 0) {
        for (int k = 0; k < n; ++k) {
            WAIT(&empty[k % 2], (k / 2 + 1) % 2);
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + k * 32, sizeof(s[0]), &full[k % 2]);
        }
    } else if (t >= 32) {
        for (int k = 0; k < n; ++k) {
            WAIT(&full[k % 2], k / 2 % 2);
            y[k * 32 + lane] = s[k % 2][31 - lane];
            ARRIVE(&empty[k % 2]);
        }
    }
}

// The consumers give a stage back before they have read it.
extern "C" __global__ void stage_released_early(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][32];
    __shared__ Barrier full[2], empty[2];
    const int t = threadIdx.x, lane = t % 32;
    x += blockIdx.x * n * 32;
    y += blockIdx.x * n * 32;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) {
            init(&full[k], 1);
            init(&empty[k], 32);
        }
        fence_async();
    }
    __syncthreads();
    if (t == 0) {
        for (int k = 0; k < n; ++k) {
            WAIT(&empty[k % 2], (k / 2 + 1) % 2);
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + k * 32, sizeof(s[0]), &full[k % 2]);  // <- race on shared memory
        }
    } else if (t >= 32) {
        for (int k = 0; k < n; ++k) {
            WAIT(&full[k % 2], k / 2 % 2);
            ARRIVE(&empty[k % 2]);
            y[k * 32 + lane] = s[k % 2][31 - lane];
        }
    }
}

extern "C" __global__ void stage_released_early_clean(const float* x, float* y, int n)
{
    __shared__ alignas(128) float s[2][32];
    __shared__ Barrier full[2], empty[2];
    const int t = threadIdx.x, lane = t % 32;
    x += blockIdx.x * n * 32;
    y += blockIdx.x * n * 32;
    if (t == 0) {
        for (int k = 0; k < 2; ++k) {
            init(&full[k], 1);
            init(&empty[k], 32);
        }
        fence_async();
    }
    __syncthreads();
    if (t == 0) {
        for (int k = 0; k < n; ++k) {
            WAIT(&empty[k % 2], (k / 2 + 1) % 2);
            EXPECT(&full[k % 2], sizeof(s[0]));
            BULK_LOAD(s[k % 2], x + k * 32, sizeof(s[0]), &full[k % 2]);
        }
    } else if (t >= 32) {
        for (int k = 0; k < n; ++k) {
            WAIT(&full[k % 2], k / 2 % 2);
            y[k * 32 + lane] = s[k % 2][31 - lane];
            ARRIVE(&empty[k % 2]);
        }
    }
}

// ---- barriers of a block ------------------------------------------------------------------------

// Warp 1 waits for warp 0, which has to say that it has stored.
extern "C" __global__ void no_named_arrive(const float* x, float* y, int n)
{
    __shared__ float s[32];
    const int t = threadIdx.x;
    const int i = blockIdx.x * 32 + t % 32;
    if (t < 32) {
        s[t] = x[i];
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");  // <- barrier that never completes
        y[i] = s[63 - t];
    }
}

extern "C" __global__ void no_named_arrive_clean(const float* x, float* y, int n)
{
    __shared__ float s[32];
    const int t = threadIdx.x;
    const int i = blockIdx.x * 32 + t % 32;
    if (t < 32) {
        s[t] = x[i];
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        y[i] = s[63 - t];
    }
}

// The arrivals of a warp count as 32, and the barrier waits for those of three warps.
extern "C" __global__ void arrivals_of_too_many(const float* x, float* y, int n)
{
    __shared__ float s[32];
    const int t = threadIdx.x;
    const int i = blockIdx.x * 32 + t % 32;
    if (t < 32) {
        s[t] = x[i];
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 96;" ::: "memory");  // <- barrier that never completes
        y[i] = s[63 - t];
    }
}

extern "C" __global__ void arrivals_of_too_many_clean(const float* x, float* y, int n)
{
    __shared__ float s[32];
    const int t = threadIdx.x;
    const int i = blockIdx.x * 32 + t % 32;
    if (t < 32) {
        s[t] = x[i];
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        y[i] = s[63 - t];
    }
}

// The first warp counts, the other one goes on to the next barrier.
extern "C" __global__ void count_in_a_branch(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    int count = 0;
    if (t < 32) count = __syncthreads_count(x[i] > n);  // <- barrier in divergent code
    __syncthreads();
    y[i] = count;
}

extern "C" __global__ void count_in_a_branch_clean(const float* x, float* y, int n)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t;
    int count = 0;
    count = __syncthreads_count(x[i] > n);
    __syncthreads();
    y[i] = count;
}

// ---- waiting for memory -------------------------------------------------------------------------

// Block 1 waits for a flag that block 0 never sets.
extern "C" __global__ void flag_never_set(const float* x, float* y, int* flag)
{
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        y[t] = x[t];
        __threadfence();
        __syncthreads();
    } else {
        if (t == 0) {
            while (*(volatile int*)flag == 0) {}  // <- hang
        }
        __syncthreads();
        y[64 + t] = 2.0f * *(volatile float*)(y + t);
    }
}

extern "C" __global__ void flag_never_set_clean(const float* x, float* y, int* flag)
{
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        y[t] = x[t];
        __threadfence();
        __syncthreads();
        if (t == 0) atomicExch(flag, 1);
    } else {
        if (t == 0) {
            while (*(volatile int*)flag == 0) {}
        }
        __syncthreads();
        y[64 + t] = 2.0f * *(volatile float*)(y + t);
    }
}

extern "C" __global__ void lock_never_released(const float* x, float* y, int* lock)
{
    const int t = threadIdx.x;
    if (t == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}  // <- hang
        __threadfence();
        *(volatile float*)y += x[blockIdx.x];
        __threadfence();
    }
}

extern "C" __global__ void lock_never_released_clean(const float* x, float* y, int* lock)
{
    const int t = threadIdx.x;
    if (t == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}
        __threadfence();
        *(volatile float*)y += x[blockIdx.x];
        __threadfence();
        atomicExch(lock, 0);
    }
}

// A block with nothing to do returns, and the others wait for it at the barrier of the grid. The
// launch is no cooperative one: the barrier holds as long as all blocks run at once.
extern "C" __global__ void grid_barrier_after_return(const float* x, float* y, int* arrived)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t, n = (gridDim.x - 1) * blockDim.x;
    if (i >= n) return;
    y[i] = x[i];
    __threadfence();
    __syncthreads();
    if (t == 0) {
        atomicAdd(arrived, 1);
        while (*(volatile int*)arrived < gridDim.x) {}  // <- hang
    }
    __syncthreads();
    const float other = i < n ? *(volatile float*)(y + n - 1 - i) : 0.0f;
    if (i < n) y[n + i] = other;
}

extern "C" __global__ void grid_barrier_after_return_clean(const float* x, float* y, int* arrived)
{
    const int t = threadIdx.x;
    const int i = blockIdx.x * blockDim.x + t, n = (gridDim.x - 1) * blockDim.x;
    if (i < n) y[i] = x[i];
    __threadfence();
    __syncthreads();
    if (t == 0) {
        atomicAdd(arrived, 1);
        while (*(volatile int*)arrived < gridDim.x) {}
    }
    __syncthreads();
    const float other = i < n ? *(volatile float*)(y + n - 1 - i) : 0.0f;
    if (i < n) y[n + i] = other;
}

// ---- kernels that stop themselves ---------------------------------------------------------------

extern "C" __global__ void trap_on_bad_value(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] > 100.0f) __trap();  // <- trap
    y[i] = 2.0f * x[i];
}

extern "C" __global__ void trap_on_bad_value_clean(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] > 128.0f) __trap();
    y[i] = 2.0f * x[i];
}

extern "C" __global__ void failed_assertion(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(x[i] <= 100.0f);  // <- trap
    y[i] = 2.0f * x[i];
}

extern "C" __global__ void failed_assertion_clean(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(x[i] <= 128.0f);
    y[i] = 2.0f * x[i];
}

// SPDX-License-Identifier: MIT
// Idea:     00_copy_persistent.cu with bulk copies: one thread of a block asks for whole tiles,
//           into shared memory and out of it again; no data passes through registers.
// Computes: copy
// Row:      none; the matrix is one flat array
// Launch:   block = 32, block == 32,
//           grid = min((rows * cols + TILE - 1) / TILE, sms)
// Shared:   4 * TILE * STAGES
// Columns:  cols % 4 == 0
// Align:    16
// Dtype:    float32
// Arch:     sm_90
// Reads:    1 read + 1 write
// Wastes:   every multiprocessor gets the same share; perhaps the fast ones wait for the slow.
// Measured: 3952 GB/s, 0.92 of a copy at 65536 x 4096 (H200, 2026-11-21)
// y = x for x and y of rows * cols floats. y must not overlap x. More than 48 KB of shared memory
// must be allowed once: see cudaFuncSetAttribute.

#define TILE 4096    // floats
#define STAGES 12    // tiles that a block has on their way
#define WRITTEN 4    // of them, on their way out

__device__ __forceinline__ unsigned place(const void* shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

// Starts the copy of a tile into shared memory; full[stage] counts its bytes.
__device__ __forceinline__ void bring(void* tile, const float* from, int bytes, void* full)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(place(full)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::
                     "r"(place(tile)), "l"(from), "r"(bytes), "r"(place(full)) : "memory");
}

extern "C" __global__ void copy_bulk(const float* __restrict__ x, float* __restrict__ y,
                                     int rows, int cols)
{
    extern __shared__ float4 ring[];
    __shared__ alignas(8) unsigned long long full[STAGES];
    if (threadIdx.x != 0) return;

    const long long count = (long long)rows * cols;
    const long long stride = (long long)gridDim.x * TILE;
    const long long first = (long long)blockIdx.x * TILE;
    for (int stage = 0; stage < STAGES; ++stage)
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(place(&full[stage])));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");

    const auto bytes_from = [=](long long tile) {
        return 4 * (int)min((long long)TILE, count - tile);
    };

    // Tile t of this block has stage t % STAGES. It is brought when the tile that had the stage
    // before has left: when at most WRITTEN later ones have not.
    long long wanted = first;
    int free = 0;
    for (int t = 0; t < STAGES - WRITTEN && wanted < count; ++t, wanted += stride) {
        bring(ring + free * TILE / 4, x + wanted, bytes_from(wanted), &full[free]);
        free = free + 1 < STAGES ? free + 1 : 0;
    }
    int stage = 0, phase = 0;
    for (long long tile = first; tile < count; tile += stride) {
        for (unsigned arrived = 0; !arrived;)
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2;"
                " selp.u32 %0, 1, 0, p; }" : "=r"(arrived)
                : "r"(place(&full[stage])), "r"(phase) : "memory");
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::
                         "l"(y + tile), "r"(place(ring + stage * TILE / 4)), "r"(bytes_from(tile))
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        if (wanted < count) {
            asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(WRITTEN) : "memory");
            bring(ring + free * TILE / 4, x + wanted, bytes_from(wanted), &full[free]);
            free = free + 1 < STAGES ? free + 1 : 0;
            wanted += stride;
        }
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

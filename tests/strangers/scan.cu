// SPDX-License-Identifier: MIT
// Prefix sums: Blelloch's two sweeps over a tree for one block, and for many blocks the single
// pass with look-back, in which a block waits for the running total of those before it.

// ---- exclusive scan of 2 * blockDim.x elements by one block; blockDim.x is a power of two ----

extern "C" __global__ void scan_blelloch(int* out, const int* in, int n)
{
    extern __shared__ int temp[];
    const int thid = threadIdx.x;
    const int size = 2 * blockDim.x;
    const int base = blockIdx.x * size;

    temp[2 * thid] = base + 2 * thid < n ? in[base + 2 * thid] : 0;
    temp[2 * thid + 1] = base + 2 * thid + 1 < n ? in[base + 2 * thid + 1] : 0;

    int offset = 1;
    for (int d = size >> 1; d > 0; d >>= 1) {  // up-sweep: sums of ever larger pieces
        __syncthreads();  // the smaller pieces are added up
        if (thid < d) {
            const int ai = offset * (2 * thid + 1) - 1;
            const int bi = offset * (2 * thid + 2) - 1;
            temp[bi] += temp[ai];
        }
        offset *= 2;
    }
    if (thid == 0) temp[size - 1] = 0;

    for (int d = 1; d < size; d *= 2) {  // down-sweep: hand the sums on the left to the right
        offset >>= 1;
        __syncthreads();  // the larger pieces have their sums
        if (thid < d) {
            const int ai = offset * (2 * thid + 1) - 1;
            const int bi = offset * (2 * thid + 2) - 1;
            const int t = temp[ai];
            temp[ai] = temp[bi];
            temp[bi] += t;
        }
    }
    __syncthreads();

    if (base + 2 * thid < n) out[base + 2 * thid] = temp[2 * thid];
    if (base + 2 * thid + 1 < n) out[base + 2 * thid + 1] = temp[2 * thid + 1];
}

// ---- inclusive scan of any length in one pass ----

enum TileState { TILE_EMPTY = 0, TILE_AGGREGATE = 1, TILE_PREFIX = 2 };

struct TileStatus {
    int state;      // what is known of the tile
    int aggregate;  // its own sum
    int prefix;     // the sum of everything up to its end
};

__device__ int warp_inclusive_scan(int value)
{
    const int lane = threadIdx.x & 31;
    for (int delta = 1; delta < 32; delta <<= 1) {
        const int other = __shfl_up_sync(0xffffffffu, value, delta);
        if (lane >= delta) value += other;
    }
    return value;
}

// Sum of all tiles before `tile`: walk back until one knows its whole prefix.
__device__ int look_back(volatile TileStatus* status, int tile)
{
    int sum = 0;
    for (int previous = tile - 1; previous >= 0; --previous) {
        int state;
        do {
            state = status[previous].state;
        } while (state == TILE_EMPTY);
        __threadfence();  // the state was seen, so what was written before it is there
        if (state == TILE_PREFIX)
            return sum + status[previous].prefix;
        sum += status[previous].aggregate;
    }
    return sum;
}

// blockDim.x is a multiple of 32. `ticket` and the states are zero before the launch.
extern "C" __global__ void scan_single_pass(int* out, const int* in, int n,
                                            volatile TileStatus* status, unsigned int* ticket)
{
    __shared__ int tile;
    __shared__ int before_tile;
    __shared__ int warp_sums[32];

    // Tiles are numbered in the order in which blocks start, so that those before are running.
    if (threadIdx.x == 0) tile = static_cast<int>(atomicAdd(ticket, 1u));
    __syncthreads();

    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int warps = blockDim.x >> 5;
    const int i = tile * blockDim.x + threadIdx.x;

    int value = warp_inclusive_scan(i < n ? in[i] : 0);
    if (lane == 31) warp_sums[warp] = value;
    __syncthreads();
    if (warp == 0) {
        const int sums = warp_inclusive_scan(lane < warps ? warp_sums[lane] : 0);
        warp_sums[lane] = sums;
    }
    __syncthreads();
    if (warp > 0) value += warp_sums[warp - 1];

    if (threadIdx.x == 0) {
        const int aggregate = warp_sums[warps - 1];
        int before = 0;
        if (tile > 0) {
            status[tile].aggregate = aggregate;
            __threadfence();
            status[tile].state = TILE_AGGREGATE;
            before = look_back(status, tile);
        }
        status[tile].prefix = before + aggregate;
        __threadfence();
        status[tile].state = TILE_PREFIX;
        before_tile = before;
    }
    __syncthreads();  // before_tile is known

    if (i < n) out[i] = before_tile + value;
}

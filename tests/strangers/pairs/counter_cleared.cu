// grid 2, block 64: uint32[128]=i*2654435761%4294967296 uint32[2]
// Hits of a block: a vote in each warp, a counter for all. Who clears it counts first.
extern "C" __global__ void k(const unsigned* x, unsigned* hits) {
  __shared__ unsigned counter;
  if (threadIdx.x == 0) counter = 0;
  FIX(__syncthreads();)
  unsigned mine = __popc(__ballot_sync(~0u, x[blockIdx.x * 64 + threadIdx.x] >> 31));
  if (threadIdx.x % 32 == 0) atomicAdd(&counter, mine);
  __syncthreads();
  if (threadIdx.x == 0) hits[blockIdx.x] = counter;
}

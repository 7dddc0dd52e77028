// grid 8, block 64: int32[512] int32[512]
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(int* a, int* b) {
  int i = blockIdx.x * 64 + threadIdx.x, next = blockIdx.x / 4 * 4 + (blockIdx.x + 1) % 4;
  a[i] = i;
  BUG(__threadfence_block();)
  FIX(asm volatile("fence.acq_rel.cluster;" ::: "memory");)
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  b[i] = a[next * 64 + threadIdx.x];
}

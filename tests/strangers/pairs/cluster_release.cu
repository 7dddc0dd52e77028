// grid 8, block 64: int32[512]
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(int* b) {
  __shared__ int box[64];
  int* there;
  int next = blockIdx.x / 4 * 4 + (blockIdx.x + 1) % 4;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(box), "r"(next % 4));
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");  // all have started
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  there[threadIdx.x] = blockIdx.x;
  asm volatile("barrier.cluster.arrive." BUG("relaxed") FIX("release") ".aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  b[blockIdx.x * 64 + threadIdx.x] = box[63 - threadIdx.x];
}

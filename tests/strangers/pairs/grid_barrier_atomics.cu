// grid 8, block 64: int32[512] int32[512]
__device__ unsigned arrived;
__device__ void grid_barrier() {
  FIX(__syncthreads();)
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(&arrived, 1);
    while (*(volatile unsigned*)&arrived < gridDim.x);
    __threadfence();
  }
  __syncthreads();
}
extern "C" __global__ void k(int* a, int* b) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  a[i] = i;
  grid_barrier();
  b[i] = a[n - 1 - i];
}

// grid 16, block 32: int32[8]
__device__ int slots[64], tail; __device__ volatile int ready[64];
extern "C" __global__ void k(int* out) {
  if (threadIdx.x) return;
  if (blockIdx.x < 8) {
    int p = atomicAdd(&tail, 1);
    slots[p] = 100 + blockIdx.x;
    __threadfence();
    ready[p] = 1;
  } else {
    int p = blockIdx.x - 8;
    while (BUG(*(volatile int*)&tail <= p) FIX(!ready[p]));
    __threadfence();
    out[p] = slots[p];
  }
}

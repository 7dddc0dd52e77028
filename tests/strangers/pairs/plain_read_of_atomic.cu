// grid 4, block 32: int32[1] int32[128]
extern "C" __global__ void k(int* n, int* out) {
  atomicAdd(n, 1);
  out[blockIdx.x * blockDim.x + threadIdx.x] = *FIX((volatile int*))n > 0;
}

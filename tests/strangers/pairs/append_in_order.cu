// grid 3, block 32: int32[8]
__device__ int reserved, queue[8]; __device__ volatile int published;
extern "C" __global__ void k(int* out) {
  if (threadIdx.x) return;
  if (blockIdx.x < 2) {
    for (int n = 0; n < 4; n++) {
      int at = atomicAdd(&reserved, 1);
      queue[at] = blockIdx.x * 10 + n + 1;
      while (published != at);
#ifndef PLANTED
      __threadfence();  // hears of the items before its own, and passes all on
#endif
      published = at + 1;
    }
  } else {
    for (int n = 0; n < 8; n++) {
      while (published <= n);
      __threadfence();
      out[n] = queue[n];
    }
  }
}

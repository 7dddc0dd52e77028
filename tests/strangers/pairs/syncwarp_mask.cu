// grid 1, block 32: int32[32]=i int32[32]
extern "C" __global__ void k(const int* x, int* y) {
  __shared__ int s[32]; int t = threadIdx.x;
  s[t] = x[t];
  BUG(if (t < 16) __syncwarp(0xffff);)
  FIX(__syncwarp();)
  y[t] = s[t ^ 16];
}

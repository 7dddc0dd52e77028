// grid 2, block 64: int32[100]=i int32[100] 100
extern "C" __global__ void k(const int* x, int* y, int n) {
  __shared__ int s[64]; int t = threadIdx.x, i = blockIdx.x*64+t;
#ifdef RACY
  if (i >= n) return;
  s[t] = x[i];
#else
  s[t] = i < n ? x[i] : 0;
#endif
  __syncthreads();
#ifndef RACY
  if (i < n)
#endif
  y[i] = s[63 - t];
}

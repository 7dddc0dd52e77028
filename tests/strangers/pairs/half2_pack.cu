// grid 2, block 64: float32[128]=i float16[128]
#include <cuda_fp16.h>
extern "C" __global__ void k(const float* x, __half2* y) {
  int t = threadIdx.x + blockIdx.x * blockDim.x;
#ifdef PLANTED
  __half2 v = y[t / 2];
  if (t & 1) v = __halves2half2(__low2half(v), __float2half(x[t]));
  else v = __halves2half2(__float2half(x[t]), __high2half(v));
  y[t / 2] = v;
#else
  ((__half*)y)[t] = __float2half(x[t]);
#endif
}

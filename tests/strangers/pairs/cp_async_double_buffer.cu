// grid 1, block 64: float32[1280]=i float32[1280] 5
#include <cuda_pipeline.h>
extern "C" __global__ void k(const float4* x, float4* y, int tiles) {
  __shared__ float4 s[2][64]; int t = threadIdx.x;
  __pipeline_memcpy_async(&s[0][t], &x[t], 16); __pipeline_commit();
  for (int i = 0; i < tiles; i++) {
    if (i + 1 < tiles) __pipeline_memcpy_async(&s[(i+1)&1][t], &x[(i+1)*64+t], 16);
    __pipeline_commit();
    __pipeline_wait_prior(BUG(2) FIX(1));
    __syncthreads();
    float4 v = s[i&1][63-t];
    y[i*64+t] = v;
    __syncthreads();
  }
}

// grid 2, block 64: float32[128]=i float32[2]
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[64]; int t = threadIdx.x;
  s[t] = x[blockIdx.x*64+t]; __syncthreads();
  if (t < 32) {
    for (int d = 32; d > 0; d >>= 1) {
      float v = s[t] + s[t+d];
      FIX(__syncwarp();)
      s[t] = v;
      FIX(__syncwarp();)
      if (d == 1) break;
    }
    if (t == 0) y[blockIdx.x] = s[0];
  }
}

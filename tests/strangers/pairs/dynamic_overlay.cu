// grid 1, block 128, shared 512: float32[128]=i float32[64]
extern "C" __global__ void k(const float* x, float* y) {
  extern __shared__ char raw[];
  float* a = (float*)raw; double* b = (double*)raw; int t = threadIdx.x;
  a[t] = x[t]; __syncthreads();
  float v = a[127 - t];
  FIX(__syncthreads();)
  if (t < 64) b[t] = v;
  __syncthreads();
  if (t < 64) y[t] = (float)b[63 - t];
}

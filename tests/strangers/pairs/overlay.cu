// grid 1, block 64: float32[64]=i float32[64]
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ union { float f[64]; int i[64]; } u; int t = threadIdx.x;
  u.f[t] = x[t]; __syncthreads();
  float v = u.f[(t+40)&63];
  FIX(__syncthreads();)
  u.i[t] = (int)v + 1; __syncthreads();
  y[t] = u.i[t ^ 1];
}

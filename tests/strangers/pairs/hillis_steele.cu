// grid 1, block 128: int32[128]=1 int32[128]
extern "C" __global__ void k(const int* x, int* y) {
  __shared__ int s[128]; int t = threadIdx.x;
  s[t] = x[t]; __syncthreads();
  for (int d = 1; d < 128; d *= 2) {
    int v = t >= d ? s[t - d] : 0;
    FIX(__syncthreads();)
    s[t] += v; __syncthreads();
  }
  y[t] = s[t];
}

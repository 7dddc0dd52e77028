// grid 2, block 64: int32[100]=i int32[100] 100
extern "C" __global__ void k(const int* x, int* y, int n) {
  __shared__ int s[64]; int t = threadIdx.x, i = blockIdx.x*64+t;
  BUG(if (i >= n) return;)
  BUG(s[t] = x[i];)
  FIX(s[t] = i < n ? x[i] : 0;)
  __syncthreads();
  FIX(if (i < n))
  y[i] = s[63 - t];
}

// grid 1, block 64: float32[384]=i float32[64] 6
extern "C" __global__ void k(const float* x, float* y, int n) {
  __shared__ float s[2][64]; int t = threadIdx.x; float acc = 0;
  for (int i = 0; i < n; i++) {
    s[i & 1][t] = x[i*64+t];
    BUG(if (i == 0))
    __syncthreads();
    acc += s[i & 1][t ^ 32];
  }
  y[t] = acc;
}

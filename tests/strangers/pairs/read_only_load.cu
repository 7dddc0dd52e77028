// grid 1, block 64: float32[64] float32[64]
extern "C" __global__ void k(float* x, float* y) {
  int t = threadIdx.x;
  x[t] = t * 2.f;
  __syncthreads();
  y[t] = BUG(__ldg(&x[t ^ 1])) FIX(x[t ^ 1]);
}

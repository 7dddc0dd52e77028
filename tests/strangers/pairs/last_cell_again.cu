// grid 2, block 64: float32[101]=i*i%17 float32[100]
// Threads past the end do the last cell again, since all are needed at the barrier.
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float right[64];
  int i = blockIdx.x * 64 + threadIdx.x, n = 100;
  if (i > n - 1) i = n - 1;
  right[threadIdx.x] = x[i + 1];
  __syncthreads();
  y[i] = x[i] + right[threadIdx.x BUG(^ 1)];
}

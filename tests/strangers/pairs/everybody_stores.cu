// grid 2, block 64: float32[128]=i float32[2] float32[128]
// Every thread of a block knows its sum, and all of them store it. Blocks have sums of their own.
extern "C" __global__ void k(const float* x, float* sums, float* y) {
  __shared__ float part[2], total;
  int i = blockIdx.x * 64 + threadIdx.x;
  float v = x[i];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  for (int spin = 0; spin < 3 * int(threadIdx.x / 32); spin++) v *= 1.5f;  // warps part
  total = part[0] + part[1];
  __syncthreads();
  sums[BUG(0) FIX(blockIdx.x)] = total;
  y[i] = v / total;
}

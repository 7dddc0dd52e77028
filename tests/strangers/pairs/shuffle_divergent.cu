// grid 1, block 32: int32[32]=i int32[32]
extern "C" __global__ void k(const int* x, int* y) {
  int t = threadIdx.x, v = x[t];
  BUG(if (t < 20) { v += __shfl_down_sync(~0u, v, 4); y[t] = v; })
  FIX(int u = __shfl_down_sync(~0u, v, 4); if (t < 20) y[t] = v + u;)
}

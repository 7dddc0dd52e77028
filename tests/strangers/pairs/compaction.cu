// grid 1, block 128: int32[128]=i int32[64] int32[1]
extern "C" __global__ void k(const int* x, int* y, int* n) {
  __shared__ int offset[4]; int t = threadIdx.x, w = t / 32, lane = t % 32;
  bool keep = x[t] & 1; unsigned m = __ballot_sync(~0u, keep);
  if (lane == 0) offset[w] = __popc(m);
  __syncthreads();
  if (t == 0) {
    int s = 0;
    for (int i = 0; i < 4; i++) { int c = offset[i]; offset[i] = s; s += c; }
    *n = s;
  }
  FIX(__syncthreads();)
  if (keep) y[offset[w] + __popc(m & ((1u << lane) - 1))] = x[t];
}

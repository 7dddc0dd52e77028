// grid 4, block 64: int32[256]=i int32[256] int32[1]
extern "C" __global__ void k(const int* x, int* out, int* n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (x[i] % 3 == 0) {
    unsigned m = __activemask(); int lane = threadIdx.x & 31, leader = __ffs(m) - 1, base;
    if (lane == leader) {
      BUG(base = *n; *n = base + __popc(m);)
      FIX(base = atomicAdd(n, __popc(m));)
    }
    base = __shfl_sync(m, base, leader);
    out[base + __popc(m & ((1u << lane) - 1))] = x[i];
  }
}

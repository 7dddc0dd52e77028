// grid 16, block 32: int32[512]=1 int32[512]
__device__ unsigned long long packed[16];
__device__ int value[16]; __device__ volatile int flag[16];
extern "C" __global__ void k(const int* x, int* y) {
  int b = blockIdx.x, t = threadIdx.x; __shared__ int before;
  int v = x[b*32+t];
  for (int d = 1; d < 32; d *= 2) { int u = __shfl_up_sync(~0u, v, d); if (t >= d) v += u; }
  int total = __shfl_sync(~0u, v, 31);
  if (t == 0) {
    int sum = 0;
#ifdef PLANTED
    if (b) { while (!flag[b-1]); sum = value[b-1]; }
    value[b] = sum + total; flag[b] = 1;
#else
    if (b) {
      unsigned long long p;
      do p = *(volatile unsigned long long*)&packed[b-1]; while (!(p >> 32));
      sum = (int)p;
    }
    *(volatile unsigned long long*)&packed[b] = 1ull << 32 | (unsigned)(sum + total);
#endif
    before = sum;
  }
  __syncthreads();
  y[b*32+t] = v + before;
}

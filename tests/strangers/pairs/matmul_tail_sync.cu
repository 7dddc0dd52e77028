// grid 2 2, block 8 8: float32[256]=i float32[256]=i float32[256] 16
#define T 8
extern "C" __global__ void k(const float* a, const float* b, float* c, int n) {
  __shared__ float sa[T][T], sb[T][T];
  int x = threadIdx.x, y = threadIdx.y, col = blockIdx.x*T+x, row = blockIdx.y*T+y; float acc = 0;
  for (int m = 0; m < n; m += T) {
    sa[y][x] = a[row*n+m+x]; sb[y][x] = b[(m+y)*n+col]; __syncthreads();
    for (int i = 0; i < T; i++) acc += sa[y][i] * sb[i][x];
    FIX(__syncthreads();)
  }
  c[row*n+col] = acc;
}

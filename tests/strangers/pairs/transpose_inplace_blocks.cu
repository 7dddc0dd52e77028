// grid 3 3, block 8 8: float32[576]=i 24
extern "C" __global__ void k(float* a, int n) {
  __shared__ float s[8][9], u[8][9];
  int x = threadIdx.x, y = threadIdx.y;
  FIX(if (blockIdx.x > blockIdx.y) return;)
  int r = blockIdx.y * 8, c = blockIdx.x * 8;
  s[y][x] = a[(r+y)*n + c+x];
  u[y][x] = a[(c+y)*n + r+x];
  __syncthreads();
  a[(c+y)*n + r+x] = s[x][y];
  FIX(if (r != c))
  a[(r+y)*n + c+x] = u[x][y];
}

// grid 1, block 64: float32[64]=i float32[1]
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[64]; int t = threadIdx.x;
  s[t] = x[t]; __syncthreads();
  if (t < 32) {
    volatile float* v = s;
    BUG(v[t] += v[t+32]; v[t] += v[t+16]; v[t] += v[t+8];)
    BUG(v[t] += v[t+4]; v[t] += v[t+2]; v[t] += v[t+1];)
    FIX(float a = v[t] + v[t+32]; __syncwarp(); v[t] = a; __syncwarp();)
    FIX(for (int d = 16; d; d >>= 1) { a = v[t] + v[t+d]; __syncwarp(); v[t] = a; __syncwarp(); })
    if (t == 0) y[0] = s[0];
  }
}

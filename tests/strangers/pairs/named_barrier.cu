// grid 1, block 64: int32[32]=i int32[32]
extern "C" __global__ void k(const int* x, int* y) {
  __shared__ int s[32]; int t = threadIdx.x;
  if (t < 32) {
    s[t] = x[t];
    asm volatile("bar.arrive 1, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync " BUG("2, 32") FIX("1, 64") ";" ::: "memory");
    y[t-32] = s[63-t];
  }
}

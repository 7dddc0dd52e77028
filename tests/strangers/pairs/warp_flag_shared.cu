// grid 1, block 64: int32[2]=5
extern "C" __global__ void k(int* y) {
  __shared__ int data; __shared__ volatile int flag;
  int t = threadIdx.x;
  if (t == 0) flag = 0;
  __syncthreads();
  if (t == 0) {
    data = y[1];
    FIX(__threadfence_block();)
    flag = 1;
  } else if (t == 32) {
    while (!flag);
    FIX(__threadfence_block();)
    y[0] = data;
  }
}

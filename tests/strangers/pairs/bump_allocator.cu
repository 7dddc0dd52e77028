// grid 3, block 64: int32[200]=0
extern "C" __global__ void k(int* y) {  // y[0]: slots that are taken; an ordinary first guess
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int old = *y, seen;
  do {
    seen = old;
    old = atomicCAS(y, seen, seen + 1);
  } while (old != seen);
  y[1 + old BUG(/ 2)] = i;
}

// grid 2, block 4: int32[1]
__device__ int lock;
extern "C" __global__ void k(int* counter) {
  bool done = false;
  while (!done) {
    if (atomicCAS(&lock, 0, 1) == 0) {
      __threadfence();
      *counter = *counter + 1;
      BUG(lock = 0;)
      FIX(__threadfence();)
      FIX(atomicExch(&lock, 0);)
      done = true;
    }
  }
}

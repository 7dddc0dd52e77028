// grid 4, block 32: uint64[1] int32[4]
extern "C" __global__ void k(unsigned long long* best, int* out) {
  if (threadIdx.x) return;
  if (blockIdx.x < 2) {
    atomicMax(best, (unsigned long long)(blockIdx.x + 5) << 32 | blockIdx.x);
  } else {
    out[blockIdx.x] BUG(= *(volatile int*)) FIX(= (int)*(volatile unsigned long long*))best;
  }
}

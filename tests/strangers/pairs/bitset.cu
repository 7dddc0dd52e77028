// grid 2, block 64: int32[128]=i uint32[4]
extern "C" __global__ void k(const int* x, unsigned* bits) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (x[i] & 1)
    BUG(bits[i / 32] |= 1u << (i % 32);)
    FIX(atomicOr(&bits[i / 32], 1u << (i % 32));)
}

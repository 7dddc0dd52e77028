// grid 2, block 128: uint8[2000]=i*i uint32[256] 2000
extern "C" __global__ void k(const unsigned char* x, unsigned* h, int n) {
  __shared__ unsigned s[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) s[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    BUG(s[x[i]]++;)
    FIX(atomicAdd(&s[x[i]], 1u);)
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) if (s[i]) atomicAdd(&h[i], s[i]);
}

// grid 3, block 64: int32[64]=i int32[192]=i*7%61 int32[192]=i*5%59
#ifdef PLANTED
#define PEEK(word) (word)
#else
#define PEEK(word) (*(volatile int*)&(word))
#endif
__device__ int root(int* parent, int v) {  // and halves the path to it
  int here = PEEK(parent[v]);
  if (here != v) {
    int before = v, up;
    while (here > (up = PEEK(parent[here]))) {
      *(volatile int*)&parent[before] = up;
      before = here;
      here = up;
    }
  }
  return here;
}
extern "C" __global__ void k(int* parent, const int* __restrict__ a, const int* __restrict__ b) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int u = root(parent, a[i]), v = root(parent, b[i]);
  while (u != v) {  // the bigger root is hung below the smaller
    if (u < v) {
      int was = atomicCAS(&parent[v], v, u);
      if (was == v) break;
      v = was;
    } else {
      int was = atomicCAS(&parent[u], u, v);
      if (was == u) break;
      u = was;
    }
  }
}

// grid 2, block 32: int32[65]=i int32[64]=(i+20)%64 int32[64]=(i<20)-1 0 int32[1] 64
extern "C" __global__ void k(const int* row, const int* col, int* dist, int level,
                             int* changed, int n) {
  int v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v >= n) return;
#ifdef PLANTED
  if (dist[v] == level)
    for (int e = row[v]; e < row[v+1]; e++)
      if (dist[col[e]] < 0) { dist[col[e]] = level + 1; *changed = 1; }
#else
  if (*(volatile int*)&dist[v] == level)
    for (int e = row[v]; e < row[v+1]; e++)
      if (atomicCAS(&dist[col[e]], -1, level + 1) == -1) atomicExch(changed, 1);
#endif
}

// grid 4, block 32: uint64[1]
union Both { unsigned long long all; unsigned part[2]; };
extern "C" __global__ void k(Both* counts) {
#ifdef RACY
  if (threadIdx.x % 2) atomicAdd(&counts->part[0], 1u);
#else
  if (threadIdx.x % 2) atomicAdd(&counts->all, 1ull);
#endif
  else atomicAdd(&counts->all, 1ull << 32);
}

// grid 4, block 32: uint64[1]
union Both { unsigned long long all; unsigned part[2]; };
extern "C" __global__ void k(Both* counts) {
  if (threadIdx.x % 2) atomicAdd(&counts->BUG(part[0], 1u) FIX(all, 1ull));
  else atomicAdd(&counts->all, 1ull << 32);
}

// grid 2, block 64: float32[128] float32[128]
extern "C" __global__ void k(float* x, float* y) {
  __shared__ alignas(128) float tile[64];
  __shared__ unsigned long long full;
  unsigned to = __cvta_generic_to_shared(tile), bar = __cvta_generic_to_shared(&full);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(bar) : "memory");
  x += blockIdx.x * 64;
  x[threadIdx.x] = threadIdx.x;
  asm volatile("fence.proxy.async" BUG(".shared::cta") ";" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;" :: "r"(bar) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "256, [%2];" :: "r"(to), "l"(x), "r"(bar) : "memory");
  }
  unsigned done = 0;
  while (!done)
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], 0;\n"
                 "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar) : "memory");
  y[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x];
}

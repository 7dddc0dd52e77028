// grid 4, block 32: int32[32]
__device__ int head, payload[32]; __device__ volatile int next[32];
extern "C" __global__ void k(int* out) {  // two blocks push 8 nodes each, two pop 8 each
  if (threadIdx.x) return;
  if (blockIdx.x < 2) {
    for (int n = 1; n <= 8; n++) {
      int node = blockIdx.x * 8 + n, seen = *(volatile int*)&head;
      payload[node] = node * node;
      for (;;) {
        next[node] = seen;
        FIX(__threadfence();)
        int was = atomicCAS(&head, seen, node);
        if (was == seen) break;
        seen = was;
      }
    }
  } else {
    for (int got = 0; got < 8;) {
      int node = *(volatile int*)&head;
      if (!node) continue;
      __threadfence();
      int after = next[node];
      if (atomicCAS(&head, node, after) == node) {
        __threadfence();
        out[node] = payload[node];
        got++;
      }
    }
  }
}

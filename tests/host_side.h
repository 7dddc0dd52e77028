// The CUDA runtime as far as the programs of tests/labelled.py use it: device memory is memory of
// the host, and a launch calls host_run with the name of the kernel, its sizes and its arguments.
#include <cassert>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iostream>
#include <map>

#include <cuda.h>
#include <cuda_runtime.h>

#define clockRate multiProcessorCount  // fields that CUDA 13 has no longer
#define memoryClockRate multiProcessorCount

static const size_t host_most = 1 << 30;
static std::map<char*, size_t> host_held;  // bytes by address
static unsigned host_sizes[7];             // grid, block, dynamic shared memory
static void (*host_run)(const char*, const unsigned*, const void* const*);

// Bytes from an address to the end of its array; 0 if no array of the device holds it.
extern "C" size_t host_left(char* address)
{
    auto after = host_held.upper_bound(address);
    if (after == host_held.begin()) return 0;
    --after;
    return address < after->first + after->second ? after->first + after->second - address : 0;
}

static void host_configure(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t = 0)
{
    const unsigned sizes[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared};
    memcpy(host_sizes, sizes, sizeof sizes);
}

static void host_launch(const char* name, std::initializer_list<const void*> arguments)
{
    host_run(name, host_sizes, arguments.begin());
}

extern "C" {
cudaError_t cudaMalloc(void** address, size_t bytes)
{
    if (bytes > host_most) return cudaErrorMemoryAllocation;
    char* made = (char*)calloc(bytes + 64, 1);
    host_held[made] = bytes;
    *address = made;
    return cudaSuccess;
}
cudaError_t cudaFree(void* address) { return host_held.erase((char*)address), cudaSuccess; }
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind)
{
    return memmove(to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return memset(to, value, bytes), cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int)
{
    memset(properties, 0, sizeof *properties);
    properties->major = 9;
    properties->multiProcessorCount = 2;
    properties->maxThreadsPerMultiProcessor = 1024;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaThreadSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return ""; }
}

// The cutil library of early CUDA.
#define CUDA_SAFE_CALL(call) call
#define CUT_SAFE_CALL(call) call
#define CUT_SAFE_MALLOC(call) call
#define CUT_CHECK_ERROR(message)
#define CUT_DEVICE_INIT(...)
#define CUT_EXIT(...)
#define cutCreateTimer(timer) 0
#define cutStartTimer(timer) 0
#define cutStopTimer(timer) 0
#define cutDeleteTimer(timer) 0
#define cutGetTimerValue(timer) 0

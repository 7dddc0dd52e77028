// What a kernel may ask of the runtime: to wait for the kernel before it, and to launch others.
#pragma once
#if __has_include(<cuda_device_runtime_api.h>)
#include <cuda_runtime_api.h>
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include <cuda_device_runtime_api.h>
#undef __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#else
__device__ inline void cudaGridDependencySynchronize()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ inline void cudaTriggerProgrammaticLaunchCompletion()
{
    asm volatile("griddepcontrol.launch_dependents;" :::);
}
#endif

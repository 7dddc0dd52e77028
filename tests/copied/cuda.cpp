// The CUDA runtime as exported files call it, without a GPU: each call is answered by a function
// that Python sets.
#include <cuda_runtime_api.h>

#include <map>
#include <string>

// Takes a call, two numbers of it and the place of its result; returns the error.
using Answer = int (*)(const char* call, long long one, long long other, void* result);
static Answer answer = nullptr;

static std::map<const void*, std::string>& kernels()  // which register when the library is loaded
{
    static std::map<const void*, std::string> found;
    return found;
}

static cudaError_t ask(const std::string& call, long long one = 0, long long other = 0,
                       void* result = nullptr)
{
    return static_cast<cudaError_t>(answer(call.c_str(), one, other, result));
}

extern "C" {
void answer_with(Answer one) { answer = one; }

void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaInitModule(void**) {}
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, void*, void*,
                            void*, void*, int*)
{
    kernels()[stub] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

// What nvcc generates for <<<...>>>, which exported files do not use.
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) { return 1; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorUnknown; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorUnknown; }
cudaError_t __cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t)
{
    return cudaErrorUnknown;
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t)
{
    return cudaErrorUnknown;
}

cudaError_t cudaGetDevice(int* device) { return ask("device", 0, 0, device); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int)
{
    return ask("attribute", attribute, 0, value);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*)
{
    *attributes = {};
    attributes->sharedSizeBytes = 1024;
    return ask("attributes of a kernel");
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value)
{
    const bool shared = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize;
    return ask(shared ? "shared" : "clusters", value);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** given)
{
    std::string call = "launch " + kernels().at(kernel) + " " + std::to_string(config->blockDim.x);
    if (config->numAttrs)
        call += config->attrs->id == cudaLaunchAttributeCooperative ? " cooperative" : " early";
    return ask(call, config->gridDim.x, static_cast<long long>(config->dynamicSmemBytes), given);
}
}

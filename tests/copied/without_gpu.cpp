// As much of the CUDA runtime as the program uses, in main memory, so that what it asks for, says
// and returns can be tested without a GPU. Prints each call and its number. FAIL=n lets call n
// fail; WRONG=n makes element n of the results wrong; ASKS is some of "programmatic", "cooperative"
// and "strided", one behind the other.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "launch.h"

static void softmax(const float* x, float* y, int rows, int cols, long long x_stride,
                    long long y_stride)
{
    for (int row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
        double sum = 0;
        for (int col = 0; col < cols; ++col) sum += std::exp(double(x[col]));
        for (int col = 0; col < cols; ++col) y[col] = std::exp(double(x[col])) / sum;
    }
}

static bool asks(const char* what)
{
    const char* asked = std::getenv("ASKS");
    return asked && std::strstr(asked, what);
}

const Launch launch = {reinterpret_cast<const void*>(&softmax), 5, 70, asks("strided") ? 75 : 70,
                       asks("strided") ? 72 : 70, 10, 64, 100 * 1024, 256, asks("strided"),
                       asks("cooperative"), asks("programmatic"), false};

static cudaError_t called(const char* name, long detail = 0, long more = 0)
{
    static int number = 0;
    std::printf("call %d %s %ld %ld\n", ++number, name, detail, more);
    const char* fail = std::getenv("FAIL");
    return fail && std::atoi(fail) == number ? cudaErrorInvalidValue : cudaSuccess;
}

extern "C" {
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorInvalidValue"; }
const char* cudaGetErrorString(cudaError_t) { return "invalid argument"; }

cudaError_t cudaMalloc(void** memory, size_t bytes)
{
    *memory = std::malloc(bytes);
    return called("cudaMalloc", bytes);
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes)
{
    std::memset(memory, value, bytes);
    return called("cudaMemset", bytes);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind)
{
    std::memcpy(to, from, bytes);
    return called("cudaMemcpy", bytes);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*)
{
    *attributes = {};
    attributes->requiredClusterWidth = 16;
    return called("cudaFuncGetAttributes");
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value)
{
    const bool shared = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize;
    return called(shared ? "shared" : "clusters", value);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** args)
{
    float* y = *static_cast<float**>(args[1]);
    const auto function = reinterpret_cast<decltype(&softmax)>(kernel);
    const int rows = *static_cast<int*>(args[2]), cols = *static_cast<int*>(args[3]);
    const bool strided = launch.strided;
    function(*static_cast<float**>(args[0]), y, rows, cols,
             strided ? *static_cast<long long*>(args[4]) : cols,
             strided ? *static_cast<long long*>(args[5]) : cols);
    if (const char* wrong = std::getenv("WRONG")) {
        float& element = y[std::atoi(wrong)];
        element = std::isnan(element) ? 0 : NAN;
    }
    std::string name = config->numAttrs ? "" : "launch";
    for (unsigned i = 0; i < config->numAttrs; ++i)
        name += config->attrs[i].id == cudaLaunchAttributeCooperative ? "cooperative"
                                                                      : "programmatic";
    return called(name.c_str(), config->gridDim.x, config->dynamicSmemBytes);
}

cudaError_t cudaDeviceSynchronize() { return called("cudaDeviceSynchronize"); }
}

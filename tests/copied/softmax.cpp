// A program that uses a kernel file as a stranger would: the file is copied and compiled by nvcc,
// the kernel launched as its header says, twice, and every result held against sums in double.
//
// Ends with 1 if a result is wrong, naming the first by row and column, and with 2 if CUDA refuses
// something, naming the error and the call.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "launch.h"

#define CALL(call) named(call, #call)

static void named(cudaError_t error, const char* call)
{
    if (error == cudaSuccess) return;
    std::printf("%s: %s\n    %s\n", cudaGetErrorName(error), cudaGetErrorString(error), call);
    std::exit(2);
}

// What CUDA must be asked for once before the kernel can be launched.
static void allow(const Launch& launch)
{
    cudaFuncAttributes kernel;
    CALL(cudaFuncGetAttributes(&kernel, launch.kernel));
    if (kernel.sharedSizeBytes + launch.shared > 48 * 1024)
        CALL(cudaFuncSetAttribute(launch.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  launch.shared));
    if (kernel.requiredClusterWidth > 8)  // more than every GPU with clusters has
        CALL(cudaFuncSetAttribute(launch.kernel, cudaFuncAttributeNonPortableClusterSizeAllowed,
                                  1));
}

static void run(const Launch& launch, const float* x, float* y, void* workspace)
{
    cudaLaunchAttribute attributes[2] = {};
    int asked = 0;
    if (launch.programmatic) {
        attributes[asked].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[asked++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (launch.cooperative) {
        attributes[asked].id = cudaLaunchAttributeCooperative;
        attributes[asked++].val.cooperative = 1;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(launch.grid);
    config.blockDim = dim3(launch.block);
    config.dynamicSmemBytes = launch.shared;
    config.attrs = attributes;
    config.numAttrs = asked;
    int rows = launch.rows, cols = launch.cols;
    long long x_stride = launch.x_stride, y_stride = launch.y_stride;
    void* arguments[] = {&x, &y, &rows, &cols, &workspace};
    void* strided[] = {&x, &y, &rows, &cols, &x_stride, &y_stride, &workspace};
    CALL(cudaLaunchKernelExC(&config, launch.kernel, launch.strided ? strided : arguments));
}

// Says which result is the first wrong one and how many there are; returns their number.
static long count_wrong(const Launch& launch, const float* x, const float* y)
{
    const double allowed = 1e-5;  // relative
    double worst = 0;
    long wrong = 0;
    for (int row = 0; row < launch.rows; ++row, x += launch.x_stride, y += launch.y_stride) {
        const double top = *std::max_element(x, x + launch.cols);
        double sum = 0;
        for (int col = 0; col < launch.cols; ++col) sum += std::exp(x[col] - top);
        for (int col = 0; col < launch.cols; ++col) {
            const double wanted = launch.copies ? x[col] : std::exp(x[col] - top) / sum;
            const double error = std::abs(y[col] - wanted);
            if (error <= allowed * std::abs(wanted)) {  // not so for NaN
                if (wanted != 0) worst = std::max(worst, error / std::abs(wanted));
                continue;
            }
            if (++wrong == 1)
                std::printf("row %d, column %d: %.9g, not %.9g\n", row, col, y[col], wanted);
        }
        for (int col = launch.cols; col < launch.y_stride; ++col)
            if (!std::isnan(y[col]) && ++wrong == 1)
                std::printf("behind row %d, column %d: %.9g was written\n", row, col, y[col]);
    }
    if (wrong) std::printf("%ld of %d x %d results are wrong\n", wrong, launch.rows, launch.cols);
    else std::printf("largest relative error %.2g\n", worst);
    return wrong;
}

int main()
{
    std::vector<float> x(launch.rows * launch.x_stride), y(launch.rows * launch.y_stride, NAN);
    const size_t x_bytes = x.size() * sizeof(float), bytes = y.size() * sizeof(float);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 8.0f * std::sin(0.37f * i) + 0.001f * (i % 97);

    allow(launch);
    float *device_x, *device_y[2];
    void* workspace = nullptr;
    CALL(cudaMalloc(reinterpret_cast<void**>(&device_x), x_bytes));
    CALL(cudaMemcpy(device_x, x.data(), x_bytes, cudaMemcpyHostToDevice));
    for (float*& copy : device_y) {
        CALL(cudaMalloc(reinterpret_cast<void**>(&copy), bytes));
        CALL(cudaMemcpy(copy, y.data(), bytes, cudaMemcpyHostToDevice));
    }
    if (launch.workspace) {
        CALL(cudaMalloc(&workspace, launch.workspace));
        CALL(cudaMemset(workspace, 0, launch.workspace));
    }
    // The second may overlap the first, whose workspace it takes over.
    for (float* copy : device_y) run(launch, device_x, copy, workspace);
    CALL(cudaDeviceSynchronize());
    for (const float* copy : device_y) {
        CALL(cudaMemcpy(y.data(), copy, bytes, cudaMemcpyDeviceToHost));
        if (count_wrong(launch, x.data(), y.data())) return 1;
    }
    return 0;
}

// A program that uses a kernel file as a stranger would: copied, compiled with nvcc, launched as
// its header says. The test passes the file and the header's lines as macros in launch.h.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "launch.h"
#include KERNEL_FILE

using std::max;
using std::min;

int main()
{
    const int rows = ROWS, cols = COLS, size = sizeof(float);
    (void)size;  // few headers ask for it
    std::vector<float> x(rows * cols), y(rows * cols, NAN);
    for (int i = 0; i < rows * cols; ++i) x[i] = 8.0f * std::sin(0.37f * i) + 0.001f * (i % 97);

    float *device_x, *device_y;
    if (cudaMalloc(&device_x, x.size() * 4) || cudaMalloc(&device_y, y.size() * 4)) {
        std::puts("no memory on a GPU");
        return 2;
    }
    cudaMemcpy(device_x, x.data(), x.size() * 4, cudaMemcpyHostToDevice);
    cudaMemcpy(device_y, y.data(), y.size() * 4, cudaMemcpyHostToDevice);

    const int block = BLOCK;
    const int grid = GRID;
    const int shared = SHARED;
    KERNEL<<<grid, block, shared>>>(device_x, device_y, rows, cols);
    if (cudaDeviceSynchronize() != cudaSuccess) {
        std::printf("launch failed: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 2;
    }
    cudaMemcpy(y.data(), device_y, y.size() * 4, cudaMemcpyDeviceToHost);

    double worst = 0;
    for (int row = 0; row < rows; ++row) {
        const float* in = &x[row * cols];
        const double top = *std::max_element(in, in + cols);
        double sum = 0;
        for (int col = 0; col < cols; ++col) sum += std::exp(in[col] - top);
        for (int col = 0; col < cols; ++col) {
            const double wanted = COPY ? in[col] : std::exp(in[col] - top) / sum;
            const double off = std::abs(y[row * cols + col] - wanted);
            const double error = wanted == 0 ? off : off / std::abs(wanted);
            if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
        }
    }
    std::printf("largest relative error %.2g\n", worst);
    return worst < 1e-5 ? 0 : 1;
}

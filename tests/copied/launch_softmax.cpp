// A launch of a CUDA of main memory that computes the softmax, or the copy.
#include <cmath>
#include <string>

#include "exported.h"

struct Launch {
    const T* x;
    T* y;
    int rows, cols;
    long long x_stride, y_stride;

    Launch(const std::string&, const cudaLaunchConfig_t&, void** given)
        : x(*static_cast<const T**>(given[0])), y(*static_cast<T**>(given[1])),
          rows(*static_cast<int*>(given[2])), cols(*static_cast<int*>(given[3])),
          x_stride(kernel_strided ? *static_cast<long long*>(given[4]) : cols),
          y_stride(kernel_strided ? *static_cast<long long*>(given[5]) : cols)
    {
    }

    void run()
    {
        for (int row = 0; row < rows; ++row) {
            const T* from = x + row * x_stride;
            T* to = y + row * y_stride;
            double top = -INFINITY, sum = 0;
            for (int col = 0; col < cols; ++col) top = std::fmax(top, float(from[col]));
            for (int col = 0; col < cols; ++col) sum += std::exp(float(from[col]) - top);
            for (int col = 0; col < cols; ++col)
                to[col] = copies ? from[col] : T(float(std::exp(float(from[col]) - top) / sum));
        }
    }
};

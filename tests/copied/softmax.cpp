// A program that uses an exported file as a stranger would. It sees nothing of it but what the file
// declares; exported.h, which a test writes, says how the function is called.
//
//     program run ROWS COLS X_STRIDE Y_STRIDE X_START Y_START
//     program refuse ROWS COLS LONGER
//
// `run` calls it twice by a graph and twice on a stream, and holds every result against sums in
// double. `refuse` uses it wrongly and prints what each call returns. X_START and Y_START are
// elements. Ends with 1 if a result is wrong, naming the first by row and column, and with 2 if
// CUDA refuses something, naming the error and the call.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "exported.h"

#define CALL(call) named(call, #call)

static void named(cudaError_t error, const char* call)
{
    if (error == cudaSuccess) return;
    std::printf("%s: %s\n    %s\n", cudaGetErrorName(error), cudaGetErrorString(error), call);
    std::exit(2);
}

struct Matrices {
    long long rows, cols, x_stride, y_stride, x_start, y_start;
    std::vector<T> x, y;  // y as it was before: NaN
    T *device_x, *device_y;

    Matrices(const long long* sizes)
        : rows(sizes[0]), cols(sizes[1]), x_stride(sizes[2]), y_stride(sizes[3]),
          x_start(sizes[4]), y_start(sizes[5]), x(x_start + rows * x_stride + 64),
          y(y_start + rows * y_stride + 64, T(NAN))
    {
        for (size_t i = 0; i < x.size(); ++i)
            x[i] = T(8.0f * std::sin(0.37f * float(i)) + 0.001f * float(i % 97));
        CALL(cudaMalloc(reinterpret_cast<void**>(&device_x), x.size() * sizeof(T)));
        CALL(cudaMalloc(reinterpret_cast<void**>(&device_y), y.size() * sizeof(T)));
        CALL(cudaMemcpy(device_x, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
        clear();
    }

    // A copy of pageable memory may return before all of it is there, and streams do not wait.
    void clear()
    {
        CALL(cudaMemcpy(device_y, y.data(), y.size() * sizeof(T), cudaMemcpyHostToDevice));
        CALL(cudaDeviceSynchronize());
    }

    cudaError_t call(Zeros& zeros, cudaStream_t stream)
    {
        return exported(device_x + x_start, device_y + y_start, rows, cols, x_stride, y_stride,
                        zeros, stream);
    }

    // Says which result is the first wrong one and how many there are; returns their number.
    long wrong()
    {
        std::vector<T> found(y.size());
        CALL(cudaMemcpy(found.data(), device_y, y.size() * sizeof(T), cudaMemcpyDeviceToHost));
        std::vector<char> written(y.size());
        double worst = 0;
        long count = 0;
        for (long long row = 0; row < rows; ++row) {
            const T* from = x.data() + x_start + row * x_stride;
            double top = -INFINITY, sum = 0;
            const auto at = [from](long long col) { return double(float(from[col])); };
            for (long long col = 0; col < cols; ++col) top = std::max(top, at(col));
            for (long long col = 0; col < cols; ++col) sum += std::exp(at(col) - top);
            for (long long col = 0; col < cols; ++col) {
                const long long place = y_start + row * y_stride + col;
                const double value = double(float(found[place])), own = at(col);
                const double wanted = copies ? own : std::exp(own - top) / sum;
                const double error = std::abs(value - wanted);
                written[place] = 1;
                if (error <= allowed * std::abs(wanted) + smallest) {  // not so for NaN
                    worst = std::max(worst, error);
                } else if (++count == 1) {
                    std::printf("row %lld, column %lld: %.9g, not %.9g\n", row, col, value, wanted);
                }
            }
        }
        for (size_t place = 0; place < y.size(); ++place)
            if (!written[place] && !std::isnan(float(found[place])) && ++count == 1)
                std::printf("place %zu was written\n", place);
        if (count) std::printf("%ld of %lld x %lld results are wrong\n", count, rows, cols);
        else std::printf("largest error %.2g\n", worst);
        return count;
    }
};

static void* dirty(size_t bytes)
{
    void* memory = nullptr;
    CALL(cudaMalloc(&memory, bytes));
    CALL(cudaMemset(memory, 0xff, bytes));
    CALL(cudaDeviceSynchronize());
    return memory;
}

static int run(Matrices matrices)
{
    cudaStream_t stream;
    CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Zeros zeros;
    const size_t bytes = workspace(matrices.rows, matrices.cols, matrices.x_stride,
                                   matrices.y_stride);
    if (bytes) CALL(zeros.prepare(dirty(bytes), bytes, stream));
    // Captured before it was ever called.
    cudaGraph_t graph;
    cudaGraphExec_t runs;
    CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CALL(matrices.call(zeros, stream));
    CALL(cudaStreamEndCapture(stream, &graph));
    CALL(cudaGraphInstantiateWithFlags(&runs, graph, 0));
    for (int call = 0; call < 2; ++call) {
        matrices.clear();
        CALL(cudaGraphLaunch(runs, stream));
        CALL(cudaStreamSynchronize(stream));
        if (matrices.wrong()) return 1;
    }

    for (int call = 0; call < 2; ++call) {
        matrices.clear();
        CALL(matrices.call(zeros, stream));
        CALL(cudaStreamSynchronize(stream));
        if (matrices.wrong()) return 1;
    }
    return 0;
}

static void print(const char* what, cudaError_t error)
{
    std::printf("%s: %s\n", what, cudaGetErrorName(error));
}

static int refuse(Matrices m, long long longer)
{
    cudaStream_t stream, other;
    CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CALL(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    Zeros zeros;
    const size_t bytes = workspace(m.rows, m.cols, m.cols, m.cols);
    if (bytes) {
        print("workspace that was not prepared", m.call(zeros, stream));
        CALL(zeros.prepare(dirty(bytes), bytes - 8, stream));
        print("workspace that is too small", m.call(zeros, stream));
        CALL(zeros.prepare(dirty(bytes), bytes, stream));
        print("workspace of another stream", m.call(zeros, other));
        Zeros late;
        void* memory = dirty(bytes);
        CALL(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
        print("workspace that is captured", late.prepare(memory, bytes, other));
        print("workspace that is left unprepared by that", m.call(late, other));
        cudaGraph_t graph;
        CALL(cudaStreamEndCapture(other, &graph));
    }
    T *x = m.device_x, *y = m.device_y;
    const long long rows = m.rows, cols = m.cols, most = 1LL << 31;
    const size_t bytes_aside = aligned > sizeof(T) ? sizeof(T) : 1;
    T* aside = reinterpret_cast<T*>(reinterpret_cast<char*>(x) + bytes_aside);
    print("no x", exported(nullptr, y, rows, cols, cols, cols, zeros, stream));
    print("no y", exported(x, nullptr, rows, cols, cols, cols, zeros, stream));
    print("in place", exported(x, x, rows, cols, cols, cols, zeros, stream));
    print("overlap", exported(x, x + 16, rows, cols, cols, cols, zeros, stream));
    print("misaligned", exported(aside, y, rows, cols, cols, cols, zeros, stream));
    CALL(exported(x, y, 0, cols, cols, cols, zeros, stream));  // empty: nothing to do
    CALL(exported(x, y, rows, 0, cols, cols, zeros, stream));
    CALL(exported(nullptr, nullptr, 0, 0, 0, 0, zeros, stream));
    print("no rows but less than no columns", exported(x, y, 0, -1, cols, cols, zeros, stream));
    print("less than none", exported(x, y, -1, cols, cols, cols, zeros, stream));
    print("rows past int", exported(x, y, most, cols, cols, cols, zeros, stream));
    print("columns past int", exported(x, y, rows, most, most, most, zeros, stream));
    print("columns that wrap", exported(x, y, rows, 2 * most + cols, cols, cols, zeros, stream));
    print("longer rows", exported(x, y, rows, longer, longer, longer, zeros, stream));
    if (strided) print("stride", exported(x, y, rows, cols, cols - 1, cols, zeros, stream));
    CALL(cudaDeviceSynchronize());
    std::vector<T> found(m.y.size());
    CALL(cudaMemcpy(found.data(), y, found.size() * sizeof(T), cudaMemcpyDeviceToHost));
    for (const T& value : found)
        if (!std::isnan(float(value))) return 1;
    std::printf("nothing was written\n");
    return 0;
}

int main(int count, char** arguments)
{
    const bool runs = count == 8 && !std::strcmp(arguments[1], "run");
    long long sizes[6] = {};
    for (int i = 2; i < count && i < 8; ++i) sizes[i - 2] = std::atoll(arguments[i]);
    if (runs) return run(Matrices(sizes));
    if (count != 5 || std::strcmp(arguments[1], "refuse")) return 2;
    const long long longer = sizes[2];
    sizes[2] = sizes[3] = sizes[1];
    return refuse(Matrices(sizes), longer);
}

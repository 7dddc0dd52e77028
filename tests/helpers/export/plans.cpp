// Reads matrices, a line each, and prints what an exported file plans for them. EXPORT(name) comes
// for each file before this one is compiled.
#include <cstdio>
#include <iostream>

template <class Plan>
static void print(const Plan& plan)
{
    std::printf("%d %d %lld %lld %lld %lld %lld %d", plan.error, static_cast<int>(plan.kernel),
                plan.grid, plan.block, plan.shared, plan.workspace, plan.cluster, plan.cooperative);
    for (const long long macro : plan.macros) std::printf(" %lld", macro);
    std::printf("\n");
}

// Of another axis than the last.
template <class Matrix>
static auto place(Matrix& matrix, long long inner, int) -> decltype(matrix.inner, void())
{
    matrix.inner = inner;
}

template <class Matrix>
static void place(Matrix&, long long, long)
{
}

#define EXPORT(name)                                                                             \
    if (file == #name) {                                                                         \
        name##_parts::Matrix matrix = {name##_parts::Dtype(dtype), size, rows, cols, x_stride,   \
                                       y_stride, x_start, y_start};                              \
        place(matrix, inner, 0);                                                                 \
        print(name##_parts::planned(matrix, {sms, l2, capability, max_shared}));                 \
    }

int main()
{
    std::string file;
    int dtype;
    long long size, rows, cols, x_stride, y_stride, x_start, y_start;
    long long sms, l2, capability, max_shared, inner;
    while (std::cin >> file >> dtype >> size >> rows >> cols >> x_stride >> y_stride >> x_start
           >> y_start >> sms >> l2 >> capability >> max_shared >> inner) {
        EXPORTS
    }
}

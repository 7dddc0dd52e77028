"""A kernel of each operation, as plain as can be: a thread computes a row."""

HEADER = """// Idea:     a thread a row
// Computes: {computes}
// Row:      one thread
// Launch:   block = 32, grid = ceil_div({rows}, block)
// Shared:   0
// Columns:  {columns}{keys}
// Dtype:    float32, float16, bfloat16
// Arch:     sm_75
// Reads:    9 reads + 1 write
// Wastes:   all
// Measured: never
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#if defined(FLOAT16)
typedef __half T;
#elif defined(BFLOAT16)
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
"""


def _file(computes: str, code: str, rows="rows", columns="cols >= 1", keys="") -> str:
    keys = f"\n// Features: {keys}\n// Align:    size" if keys else "\n// Align:    size"
    return HEADER.format(computes=computes, rows=rows, columns=columns, keys=keys) + code


FUSED = _file(
    "softmax",
    """
#ifndef MASK
#define MASK 0
#endif
#ifndef BIAS
#define BIAS 0
#endif
#ifndef LOG
#define LOG 0
#endif
#ifndef WIDE
#define WIDE 0
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif
#ifndef ZERO
#define ZERO 0
#endif
#if WIDE
typedef float Y;
#else
typedef T Y;
#endif

__device__ unsigned number(unsigned col, unsigned row, unsigned long long seed,
                           unsigned long long offset)
{
    uint4 c = make_uint4(col / 8, row, (unsigned)offset, (unsigned)(offset >> 32));
    uint2 key = make_uint2((unsigned)seed, (unsigned)(seed >> 32));
    for (int round = 0; round < 7; ++round) {
        const unsigned long long a = 0xD2511F53ull * c.x, b = 0xCD9E8D57ull * c.z;
        c = make_uint4((unsigned)(b >> 32) ^ c.y ^ key.x, (unsigned)b,
                       (unsigned)(a >> 32) ^ c.w ^ key.y, (unsigned)a);
        key = make_uint2(key.x + 0x9E3779B9u, key.y + 0xBB67AE85u);
    }
    const unsigned words[4] = {c.x, c.y, c.z, c.w};
    return words[col % 8 / 2] >> col % 2 * 16 & 0xffff;
}

extern "C" __global__ void fused(const T* x, Y* y, int rows, int cols, float scale, const T* bias,
                                 int bias_rows, const unsigned char* mask, int mask_rows,
                                 int mask_repeat, float p, unsigned long long seed,
                                 unsigned long long offset, int bias_repeat, int bias_group,
                                 int mask_group, long long diagonal)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const long long start = (long long)row * cols;
    const float lowest = -3.402823466e+38f;
    float largest = lowest, sum = 0.0f;
    const auto logit = [&](int col) {
        float value = scale * float(x[start + col]);
        if (BIAS) {
            const int from = row / bias_group * bias_rows + row / bias_repeat % bias_rows;
            value += float(bias[(long long)from * cols + col]);
        }
        if (MASK == 1) {
            const int from = row / mask_group * mask_rows + row / mask_repeat % mask_rows;
            const unsigned char byte = mask[(long long)from * cols + col];
            if (byte) value = __int_as_float(0xff800000);
        }
        const int query = MASK == 2 ? row / mask_repeat % mask_rows : 0;
        if (MASK == 2 && col > query + diagonal) value = __int_as_float(0xff800000);
        return value;
    };
    for (int col = 0; col < cols; ++col) largest = fmaxf(largest, logit(col));
    for (int col = 0; col < cols; ++col) sum += expf(logit(col) - largest);
    if (ZERO && sum == 0.0f) sum = 1.0f;
    const float all = sum > 0.0f ? logf(sum) : __int_as_float(0x7fc00000);
    for (int col = 0; col < cols; ++col) {
        float value = LOG ? logit(col) - largest - all : expf(logit(col) - largest) / sum;
        if (DROPOUT) {
            const unsigned below = p * 65536.0f;
            const float left = 1.0f - below / 65536.0f;
            value *= number(col, row, seed, offset) >= below ? 1.0f / left : 0.0f;
        }
        y[start + col] = Y(value);
    }
}
""",
    keys="(WIDE == 0 || size == 2) && (ZERO == 0 || LOG == 0)",
)
ANY_AXIS = _file(
    "softmax_any_axis",
    """
extern "C" __global__ void any_axis(const T* x, T* y, int outer, int dim, int inner)
{
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= (long long)outer * inner) return;
    const long long start = column / inner * dim * inner + column % inner;
    float largest = -3.402823466e+38f, sum = 0.0f;
    for (int k = 0; k < dim; ++k) largest = fmaxf(largest, float(x[start + (long long)k * inner]));
    for (int k = 0; k < dim; ++k) sum += expf(float(x[start + (long long)k * inner]) - largest);
    for (int k = 0; k < dim; ++k) {
        const long long i = start + (long long)k * inner;
        y[i] = T(expf(float(x[i]) - largest) / sum);
    }
}
""",
    rows="outer * inner",
    columns="dim >= 1",
)
BACKWARD = _file(
    "softmax_backward",
    """
#ifndef LOG
#define LOG 0
#endif
#ifndef MASK
#define MASK 0
#endif
extern "C" __global__ void backward(const T* y, const T* dy, T* dx, int rows, int cols, float scale,
                                    const unsigned char* mask, int mask_rows, int mask_repeat,
                                    int mask_group, long long diagonal)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const long long start = (long long)row * cols;
    float sum = 0.0f;
    const auto hidden = [&](int col) {
        if (MASK == 2) return col > row / mask_repeat % mask_rows + diagonal;
        const int from = MASK ? row / mask_group * mask_rows + row / mask_repeat % mask_rows : 0;
        return MASK == 1 && mask[(long long)from * cols + col] != 0;
    };
    const auto given = [&](const T* of, int col) {
        return MASK && hidden(col) ? 0.0f : float(of[start + col]);
    };
    for (int col = 0; col < cols; ++col) {
        const float g = given(dy, col);
        sum += LOG ? g : given(y, col) * g;
    }
    for (int col = 0; col < cols; ++col) {
        const float kept = given(y, col), g = given(dy, col);
        dx[start + col] = T(scale * (LOG ? g - expf(kept) * sum : kept * (g - sum)));
    }
}
""",
    keys="MASK == 0 || LOG == 0",
)
CROSS_ENTROPY = _file(
    "cross_entropy",
    """
extern "C" __global__ void loss_of(const T* x, const long long* target, float* loss,
                                   float* statistics, int rows, int cols,
                                   long long ignore_index, float smoothing, float z_loss)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    x += (long long)row * cols;
    const long long t = target[row];
    float largest = -3.402823466e+38f, sum = 0.0f, total = 0.0f;
    for (int col = 0; col < cols; ++col) largest = fmaxf(largest, float(x[col]));
    for (int col = 0; col < cols; ++col) sum += expf(float(x[col]) - largest);
    for (int col = 0; col < cols; ++col) total += float(x[col]);
    const float log_sum = logf(sum), all = largest + log_sum;
    const float picked = t >= 0 && t < cols ? float(x[t]) : __int_as_float(0x7fc00000);
    float value = log_sum + (1.0f - smoothing) * (largest - picked) + z_loss * all * all;
    if (smoothing > 0.0f) value += smoothing * (largest - total / cols);
    loss[row] = t == ignore_index ? 0.0f : value;
    statistics[2 * row] = sum == 0.0f ? __int_as_float(0xff800000) : largest;
    statistics[2 * row + 1] = log_sum;
}
""",
)
GRADIENT = _file(
    "cross_entropy_backward",
    """
extern "C" __global__ void gradient(const T* x, const long long* target, const float* statistics,
                                    const float* dloss, T* dx, int rows, int cols,
                                    long long ignore_index, float smoothing, float z_loss)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const long long start = (long long)row * cols, t = target[row];
    const float largest = statistics[2 * row], log_sum = statistics[2 * row + 1];
    const float grown = 1.0f + 2.0f * z_loss * (largest + log_sum);
    const float nan = __int_as_float(0x7fc00000);
    const bool ignored = t == ignore_index, there = t >= 0 && t < cols;
    for (int col = 0; col < cols; ++col) {
        const float below = float(x[start + col]) - largest - log_sum;
        float value = expf(below) * grown - smoothing / cols;
        if (col == t) value -= 1.0f - smoothing;
        value = there ? dloss[row] * value : nan;
        dx[start + col] = T(ignored ? 0.0f : value);
    }
}
""",
).replace("// Align:    size\n", "// Align:    size\n// Inplace:  dx = x\n")

EACH = {
    "softmax": FUSED,
    "softmax_any_axis": ANY_AXIS,
    "softmax_backward": BACKWARD,
    "cross_entropy": CROSS_ENTROPY,
    "cross_entropy_backward": GRADIENT,
}

// SPDX-License-Identifier: MIT
// One feature a kernel, none with a bug: local memory, calls, and variables of the module.
// See tests/simt/features.

// ---- local memory -------------------------------------------------------------------------------

// Follows a chain through an array that lives in local memory, since its index is data.
extern "C" __global__ void local_array(const int* x, int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int table[9];
    for (int j = 0; j < 9; ++j) table[j] = x[9 * i + j];
    int at = i % 9, sum = 0;
    for (int step = 0; step < 6; ++step) {
        const int next = table[at];
        sum = 31 * sum + next;
        table[at] = (next + i) % 9;
        at = next;
    }
    y[i] = sum;
}

// Elements of one byte and of eight in one frame, and an access of 16 bytes.
extern "C" __global__ void local_sizes(const int* x, long long* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    signed char small[11];
    long long wide[5];
    float4 quad[3];
    for (int j = 0; j < 11; ++j) small[j] = (signed char)(x[i] * (j + 1));
    for (int j = 0; j < 5; ++j) wide[j] = (long long)(x[i] + j) << 33;
    for (int j = 0; j < 3; ++j) quad[j] = make_float4(x[i], j, x[i] * j, 2.0f);
    const unsigned at = x[i];
    const float4 q = quad[at % 3];
    y[i] = small[at % 11] + wide[at % 5] + (long long)(q.x + q.y * q.z - q.w);
}

__device__ __noinline__ void fill(int* place, int count, int start)
{
    for (int j = 0; j < count; ++j) place[j] = start + j * j;
}

__device__ __noinline__ int largest(const int* place, int count)
{
    int best = place[0];
    for (int j = 1; j < count; ++j) best = max(best, place[j]);
    return best;
}

// The same functions take a pointer to local, to shared and to global memory.
extern "C" __global__ void local_pointer(int* y, int* scratch, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ int shared[7 * 64];
    int own[7];
    const int count = 1 + i % 7;
    if (i >= n) return;
    fill(own, 7, -i);
    fill(shared + 7 * threadIdx.x, 7, 2 * i);
    fill(scratch + 7 * i, 7, 3 * i);
    y[i] = largest(own, count) + 1000 * largest(shared + 7 * threadIdx.x, count)
         + 1000000 * largest(scratch + 7 * i, count);
}

// The range reduction of large arguments indexes an array in local memory.
extern "C" __global__ void slow_sine(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = sinf(x[i]);
}

// ---- calls --------------------------------------------------------------------------------------

struct Pair {
    float largest;
    int count;
    double sum;
};

// The algebra of the online softmax: associative and commutative.
__device__ __noinline__ Pair merge(Pair a, Pair b)
{
    const float top = fmaxf(a.largest, b.largest);
    return {top, a.count + b.count,
            a.sum * exp2f(a.largest - top) + b.sum * exp2f(b.largest - top)};
}

extern "C" __global__ void struct_call(const float* x, float* largest, int* count, double* sum,
                                       int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Pair mine = {x[5 * i], 1, 1.0};
    for (int j = 1; j < 5; ++j) mine = merge(mine, {x[5 * i + j], j, 1.0});
    largest[i] = mine.largest;
    count[i] = mine.count;
    sum[i] = mine.sum;
}

__device__ __noinline__ int square_plus(int a, int b) { return a * a + b; }

__device__ __noinline__ int horner(int a, int b)
{
    return square_plus(square_plus(a, b), square_plus(b, a));
}

extern "C" __global__ void nested_calls(const int* x, int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = horner(x[i], i) - square_plus(i, 1);
}

__device__ __noinline__ int collatz(int value)
{
    int steps = 0;
    for (; value != 1; ++steps) {
        if (steps > 60) return -steps;
        value = value & 1 ? 3 * value + 1 : value / 2;
    }
    return steps;
}

// One function, called from both sides of a branch and from a loop of unequal length.
extern "C" __global__ void call_in_divergence(int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int total;
    if (i % 3 == 0) {
        total = collatz(i + 1);
    } else {
        total = 0;
        for (int j = 0; j < i % 5; ++j) {
            total += 100 * collatz(i + j);
            if (total > 5000) break;
        }
    }
    y[i] = total;
}

__device__ __noinline__ int scan_step(int value, int distance)
{
    const int other = __shfl_up_sync(0xffffffff, value, distance);
    return (int)(threadIdx.x % 32) >= distance ? value + other : value;
}

// The called function exchanges values between the lanes of its warp.
extern "C" __global__ void call_with_shuffle(const int* x, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int value = x[i];
    for (int distance = 1; distance < 32; distance *= 2) value = scan_step(value, distance);
    y[i] = value;
}

__device__ __noinline__ int fibonacci(int k)
{
    return k < 2 ? k : fibonacci(k - 1) + fibonacci(k - 2);
}

extern "C" __global__ void recursion(int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fibonacci(i % 11);
}

// ---- variables of the module --------------------------------------------------------------------

__device__ int factor = 3;
__device__ int history[70];
__device__ float offsets[4] = {0.5f, -1.5f, 2.25f, 8.0f};

// One block of 70 threads; leaves `factor` as it was, since a module lives longer than a launch.
extern "C" __global__ void device_variables(const int* x, float* y)
{
    const int t = threadIdx.x;
    history[t] = x[t] * factor;
    __syncthreads();
    if (t == 0) factor = 7;
    __syncthreads();
    y[t] = history[69 - t] * factor + offsets[t % 4];
    __syncthreads();
    if (t == 0) factor = 3;
}

__device__ int row[5] = {2, 3, 5, 7, 11};
__device__ int* middle = &row[2];

// A variable whose initial value is the address of another.
extern "C" __global__ void device_pointer(int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = middle[i % 5 - 2] * i;
}

__constant__ short weights[33] = {5,  -3, 8,  1,  0,  -7, 2,  9,  4,  -6, 11, 3,  -2, 7,  10, -5, 6,
                                  12, -9, 13, 14, -1, 15, 20, -8, 17, 16, 18, -4, 19, 21, 23, 22};
__constant__ float unset[4];

extern "C" __global__ void constant_table(const int* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = weights[x[i]] * 10 + unset[x[i] % 4] + weights[16];
}

// A table within a function: the compiler makes a variable of the module out of it.
extern "C" __global__ void lookup_table(const int* x, double* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const double powers[7] = {1.0, 0.1, 1e-2, 1e3, 2.5, -7.0, 1e10};
    if (i < n) y[i] = powers[x[i] % 7] * i;
}

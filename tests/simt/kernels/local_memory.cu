// SPDX-License-Identifier: MIT
// Accesses outside of a thread's local memory: arrays of a thread that are indexed at run time.
//
// The bounds are those of all local memory of the thread, where the compiler lays out its arrays
// side by side: an index that goes from one array into the next of them is not seen.

#include "twins.cuh"

__device__ __noinline__ void bits(char* text, unsigned long long value)
{
    for (int at = 0; value; value /= 2) text[at++] = (char)('0' + value % 2);  // <- out-of-bounds local store
}

// Digits of up to 64 bits in a text of 32; the function that writes them knows of no bound.
extern "C" __global__ void too_many_digits(const int* x, int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    char text[BUG(32) FIX(64)] = {};
    bits(text, (unsigned long long)x[i] << n);
    y[i] = text[n] + text[n + i % 8];
}

// Marks which of 0 to 7 there are, and is given an 8.
extern "C" __global__ void mark_past(const int* x, int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int seen[8] = {};
    for (int j = 0; j < n; ++j) {
        const int value = x[i * n + j];
        FIX(if (value < 8)) seen[value] = 1;  // <- out-of-bounds local store
    }
    for (int j = 0; j < 8; ++j) y[8 * i + j] = seen[j];
}

// The element before the first.
extern "C" __global__ void one_before(const int* x, int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int values[8];
    for (int j = 0; j < 8; ++j) values[j] = j * i;
    y[i] = values[BUG(x[i] - 1) FIX(max(x[i] - 1, 0))];  // <- out-of-bounds local load
}

// A stack of four is pushed to as long as there is something to push.
extern "C" __global__ void stack_overflow(const int* x, int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int stack[4], top = 0;
    for (int j = 0; j < n; ++j) {
        if (x[i * n + j] % 2 FIX(&& top < 4)) stack[top++] = x[i * n + j];  // <- out-of-bounds local store
    }
    int sum = 0;
    for (int j = 0; j < min(top, 4); ++j) sum = 3 * sum + stack[j];
    y[i] = sum;
}

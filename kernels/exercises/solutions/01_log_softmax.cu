// SPDX-License-Identifier: MIT
// Idea:     the logarithm of softmax, one thread per row
// Row:      one thread
// Launch:   block = 128, grid = (rows + block - 1) / block
// Shared:   0
// Columns:  cols >= 1
// Align:    4
// Dtype:    float32
// Arch:     sm_75
// Reads:    3 reads + 1 write
// Wastes:   three reads where two would be enough, all of them uncoalesced
// Measured: no, this is an exercise

extern "C" __global__ void log_softmax(const float* __restrict__ x, float* __restrict__ y,
                                       int rows, int cols)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;

    x += (long long)row * cols;
    y += (long long)row * cols;

    float row_max = __int_as_float(0xff800000);  // -inf
    for (int col = 0; col < cols; ++col)
        row_max = fmaxf(row_max, x[col]);

    // ---- write here ----
    float sum = 0.0f;
    for (int col = 0; col < cols; ++col)
        sum += expf(x[col] - row_max);

    const float log_sum = logf(sum);
    for (int col = 0; col < cols; ++col)
        y[col] = x[col] - row_max - log_sum;
}

// Masks of a backward pass: masked columns of y and dy count as 0, whatever is in memory, and packs
// that a causal mask hides are not loaded. A file that includes this needs -DFROM_X,
// -DLOG and -DPACKS; MASK is that of 12_fused.cu, and 0 unless it is defined.
#pragma once
#include "from_x.cuh"
#include "masks.cuh"

#ifndef MASK
#define MASK 0
#endif

static_assert(MASK >= 0 && MASK <= 2, "MASK must be 0 (none), 1 (an array) or 2 (causal)");
static_assert(MASK == 0 || LOG == 0, "the gradient of a logarithm sums dy of masked columns too");

struct Hidden {
    using Bytes = Access<width>::Bits;  // of a pack: a byte for each column

    const Bytes* mask;  // of the row, with MASK=1
    int visible;        // columns 0 to visible - 1; a causal mask hides the others
    int packs;          // that have visible columns

    // Hides columns of the packs first, first + step, ... of y and of dy.
    __device__ __forceinline__ void hide(Pack (&y)[PACKS], Pack (&dy)[PACKS], int first,
                                         int step) const
    {
        Bytes bytes[PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; ++k)
            if (MASK == 1) bytes[k] = first + k * step < packs ? mask[first + k * step] : Bytes{};
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            if (MASK == 2 && first + k * step != visible / width) continue;  // not partly hidden
#pragma unroll
            for (int c = 0; c < width; ++c) {
                const bool masked = MASK == 1
                    ? reinterpret_cast<const unsigned char*>(&bytes[k])[c]
                    : (first + k * step) * width + c >= visible;
                if (!masked) continue;
                reinterpret_cast<T*>(&y[k])[c] = T(past_end());
                reinterpret_cast<T*>(&dy[k])[c] = T(0.0f);
            }
        }
    }
};

// What the mask hides of a row of whole packs.
__device__ __forceinline__ Hidden hidden_of(int row, int cols, const unsigned char* mask,
                                            int mask_rows, int mask_repeat, int mask_group,
                                            long long diagonal)
{
    if (MASK == 2) {
        const int visible = visible_columns(row / mask_repeat % mask_rows, diagonal, cols);
        return {nullptr, visible, (visible + width - 1) / width};
    }
    if (MASK == 1) mask += (long long)row_beside(row, mask_rows, mask_repeat, mask_group) * cols;
    return {reinterpret_cast<const Hidden::Bytes*>(mask), cols, cols / width};
}

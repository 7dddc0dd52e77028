// SPDX-License-Identifier: MIT
// Bitonic sort of each row in shared memory, keys with the places that they came from. Rows of
// any length are filled up to a power of two with keys that sort behind all others.

struct Item {
    float key;
    int place;
};

__device__ bool comes_before(const Item& a, const Item& b)
{
    return a.key < b.key || (a.key == b.key && a.place < b.place);  // equal keys stay in order
}

__device__ void exchange(Item& a, Item& b)
{
    const Item t = a;
    a = b;
    b = t;
}

// Dynamic shared memory: `padded` items, a power of two and at least `cols`.
extern "C" __global__ void sort_rows(float* keys, int* places, int cols, int padded)
{
    extern __shared__ Item items[];
    keys += blockIdx.x * cols;
    places += blockIdx.x * cols;

    for (int i = threadIdx.x; i < padded; i += blockDim.x)
        items[i] = i < cols ? Item{keys[i], i} : Item{__int_as_float(0x7f800000), i};
    __syncthreads();  // the row is loaded

    for (int size = 2; size <= padded; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            for (int t = threadIdx.x; t < padded / 2; t += blockDim.x) {
                const int low = 2 * t - (t & (stride - 1));
                const int high = low + stride;
                const bool ascending = (low & size) == 0;
                if (comes_before(items[high], items[low]) == ascending)
                    exchange(items[low], items[high]);
            }
            __syncthreads();  // one stage is done
        }
    }

    for (int i = threadIdx.x; i < cols; i += blockDim.x) {
        keys[i] = items[i].key;
        places[i] = items[i].place;
    }
}

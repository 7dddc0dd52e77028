#pragma once
#include <cuda/std/cstddef>
using ptrdiff_t = cuda::std::ptrdiff_t;
namespace std {
using ::ptrdiff_t;
using ::size_t;
}

#pragma once
extern "C++" {
#include <cuda/std/cfloat>
}

// The types that cufft.h brings along.
#pragma once
#if __has_include(<cuComplex.h>)
#include <cuComplex.h>
typedef cuComplex cufftComplex;
typedef cuDoubleComplex cufftDoubleComplex;
#endif
typedef float cufftReal;
typedef double cufftDoubleReal;

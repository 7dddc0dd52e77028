// What is there without an include, because nvcc begins with cuda_runtime.h.
#pragma once
#include "algorithm"
#include "limits.h"
#include "math.h"
#include "stddef.h"
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
#if !defined(_WIN32) && !defined(__linux__)
#define __linux__ 1  // as g++ does
#endif
#ifndef __NVCC__
#define __NVCC__ 1
#endif

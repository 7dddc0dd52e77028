// The types that cublas_v2.h brings along.
#pragma once
#if __has_include(<cuda_bf16.h>)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif
#if __has_include(<cuda_fp8.h>)
#include <cuda_fp8.h>
#endif

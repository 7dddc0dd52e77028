#pragma once
#ifndef INFINITY
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#endif
#ifndef NAN
#define NAN __builtin_bit_cast(float, 0x7fffffff)
#endif
#define M_PI 3.14159265358979323846
#define M_E 2.7182818284590452354
#define M_SQRT2 1.41421356237309504880
namespace std {
using ::abs;
using ::ceil;
using ::cos;
using ::exp;
using ::fabs;
using ::floor;
using ::fmax;
using ::fmin;
using ::isinf;
using ::isnan;
using ::log;
using ::pow;
using ::round;
using ::sin;
using ::sqrt;
using ::tan;
using ::tanh;
}

#pragma once
using ptrdiff_t = decltype((char*)0 - (char*)0);
namespace std {
using ::ptrdiff_t;
using ::size_t;
}

// SPDX-License-Identifier: MIT
// Each kernel with a planted bug has a twin without it: FIX(...) is in the twin alone, and BUG(...) in
// the kernel with the bug, which is compiled with -DPLANTED.

#ifdef PLANTED
#define BUG(...) __VA_ARGS__
#define FIX(...)
#else
#define BUG(...)
#define FIX(...) __VA_ARGS__
#endif

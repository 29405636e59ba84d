// UNROLL, before loops over constant bounds that must be unrolled for speed. Under the sanitizers, which check every
// access, unrolled code takes minutes to compile and finds nothing more.
#pragma once

#ifdef __SANITIZE_ADDRESS__
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

// What differs between compilers.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#define UNROLL_ALL _Pragma("clang loop unroll(full)")
#define UNROLL_GROUPS _Pragma("clang loop unroll_count(4)")
#elif defined(__GNUC__)
#define UNROLL_ALL _Pragma("GCC unroll 16")
#define UNROLL_GROUPS _Pragma("GCC unroll 4")
#else
#define UNROLL_ALL
#define UNROLL_GROUPS
#endif

// ENABLE_ISA("avx2,fma"): the functions behind it in this file may use these instructions.
#if defined(__clang__)
#define NARTK_TEXT(x) _Pragma(#x)
#define ENABLE_ISA(names) NARTK_TEXT(clang attribute push(__attribute__((target(names))), apply_to = function))
#define DISABLE_ISA NARTK_TEXT(clang attribute pop)
#elif defined(__GNUC__)
#define NARTK_TEXT(x) _Pragma(#x)
#define ENABLE_ISA(names) NARTK_TEXT(GCC push_options) NARTK_TEXT(GCC target(names))
#define DISABLE_ISA
#else
#define ENABLE_ISA(names)
#define DISABLE_ISA
#endif

#if defined(__x86_64__) || defined(_M_X64)
#define NARTK_X86 1
#include <immintrin.h>
#if defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define NARTK_AMX 1
#endif
#elif defined(__aarch64__) || defined(_M_ARM64)
#define NARTK_ARM 1
#include <arm_neon.h>
#endif

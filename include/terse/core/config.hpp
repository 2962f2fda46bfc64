// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/separate.hpp"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error \
    "terse gives the same bits everywhere and can't do so under -ffast-math or -ffinite-math-only; compile without"
#endif

/// Marks a function that runs on host and device.
#ifdef __CUDACC__
#define TERSE_HD __host__ __device__
#else
#define TERSE_HD
#endif

/// Arithmetic between these two macros is never contracted into fused multiply-adds, regardless of the user's flags.
/// The user's own code is not affected. Device code needs -fmad=false, which the device dependency sets. Comparisons of
/// floats between these macros are meant to be exact, so -Wfloat-equal is silent there.
#if defined(__clang__)
// clang would also warn about every loop that it can't vectorize, especially under sanitizers. That affects only
// speed; -Rpass-missed=loop-vectorize shows these loops on request.
#define TERSE_NUMERICS_BEGIN                                                                        \
  _Pragma("float_control(push)") _Pragma("clang fp contract(off)") _Pragma("clang diagnostic push") \
      _Pragma("clang diagnostic ignored \"-Wpass-failed\"")                                         \
          _Pragma("clang diagnostic ignored \"-Wfloat-equal\"")
#define TERSE_NUMERICS_END _Pragma("clang diagnostic pop") _Pragma("float_control(pop)")
#elif defined(__CUDACC__)
// nvcc passes the pragmas to its host compiler, but also warns that it doesn't know them itself.
#define TERSE_NUMERICS_BEGIN                                                                 \
  _Pragma("nv_diagnostic push") _Pragma("nv_diag_suppress 1675") _Pragma("GCC push_options") \
      _Pragma("GCC optimize(\"fp-contract=off\")")
#define TERSE_NUMERICS_END _Pragma("GCC pop_options") _Pragma("nv_diagnostic pop")
#elif defined(__GNUC__)
#define TERSE_NUMERICS_BEGIN                                                                              \
  _Pragma("GCC push_options") _Pragma("GCC optimize(\"fp-contract=off\")") _Pragma("GCC diagnostic push") \
      _Pragma("GCC diagnostic ignored \"-Wfloat-equal\"")
#define TERSE_NUMERICS_END _Pragma("GCC diagnostic pop") _Pragma("GCC pop_options")
#else
#error "terse knows how to switch contraction off under g++ and clang++ only"
#endif

/// The inline namespace of functions that depend on the instruction set: units compiled for different instruction sets
/// may be linked into one program.
#if defined(__AVX512BW__)
#define TERSE_INSTRUCTIONS avx512
#elif defined(__AVX2__)
#define TERSE_INSTRUCTIONS avx2
#elif defined(__SSE2__)
#define TERSE_INSTRUCTIONS sse2
#else
#define TERSE_INSTRUCTIONS portable
#endif

/// Promises that the iterations of the next loop over lanes do not depend on each other.
#if defined(__clang__)
#define TERSE_LANES _Pragma("clang loop vectorize(assume_safety)")
#else
#define TERSE_LANES _Pragma("GCC ivdep")
#endif

/// Prevents vectorization of the next loop, over the lanes of a piece's incomplete last block. It runs once per
/// piece, and vector code for any number of lanes would be most of a verb's code.
#if defined(__clang__)
#define TERSE_LAST_LANES _Pragma("clang loop vectorize(disable) interleave(disable) unroll(disable)")
#else
#define TERSE_LAST_LANES
#endif

/// Unrolls the next short loop of constant length. Otherwise the loop around it isn't vectorized by g++ at -O2.
#if defined(__clang__) || defined(__CUDA_ARCH__)
#define TERSE_UNROLL _Pragma("unroll")
#else
#define TERSE_UNROLL _Pragma("GCC unroll 8")
#endif

/// Keeps a kernel's next loop rolled: for rare code, in which unrolling would only add instructions.
#ifdef __CUDA_ARCH__
#define TERSE_ROLLED _Pragma("unroll 1")
#else
#define TERSE_ROLLED
#endif

/// Inlines a function at every optimization level: for the inside of verbs, whose loop must contain the functor's
/// arithmetic.
#define TERSE_INLINE inline __attribute__((always_inline))

/// Inlines a lambda under clang. Otherwise clang calls large lambdas, keeps their captures in memory and reloads them
/// for each vector. g++ inlines lambdas by itself, and doesn't vectorize them if told to inline.
#if defined(__clang__) && !defined(__CUDACC__)
#define TERSE_INLINE_LAMBDA __attribute__((always_inline))
#else
#define TERSE_INLINE_LAMBDA
#endif

/// Exports a type that is thrown from one shared library and caught in another.
#define TERSE_VISIBLE __attribute__((visibility("default")))

/// Keeps a function out of line: for code that several functions share and none calls often.
#define TERSE_NO_INLINE __attribute__((noinline))

/// Inlines all calls in the next function, also of users' functors: a call in the loop over lanes would prevent its
/// vectorization.
#define TERSE_FLATTEN __attribute__((flatten))

/// Compiles a function for size, which also takes less time: for code that runs at most once.
#if defined(__clang__) && !defined(__CUDACC__)
#define TERSE_COLD __attribute__((cold, minsize))
#else
#define TERSE_COLD __attribute__((cold))
#endif

/// True if the compiler knows, after inlining, that a condition holds. Use it to skip optional work, such as storing
/// a value that memory already has. Always false in device code, see executor/streams.hpp for the solution there.
#ifdef __CUDA_ARCH__
#define TERSE_KNOWN(condition) false
#else
#define TERSE_KNOWN(condition) (__builtin_constant_p(condition) && (condition))
#endif

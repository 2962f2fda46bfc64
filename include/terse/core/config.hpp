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

/// Arithmetic between these two is never contracted into fused multiply-adds, whatever the user's own flags
/// say and without touching the user's own code. Device code needs -fmad=false, which the device dependency
/// carries. Comparisons of floats between the two are meant exactly: -Wfloat-equal is silent there.
#if defined(__clang__)
// clang would also warn of every loop that it can't vectorize, under sanitizers of all; that is a matter of speed, and
// -Rpass-missed=loop-vectorize tells whoever asks.
#define TERSE_NUMERICS_BEGIN                                                                        \
  _Pragma("float_control(push)") _Pragma("clang fp contract(off)") _Pragma("clang diagnostic push") \
      _Pragma("clang diagnostic ignored \"-Wpass-failed\"")                                         \
          _Pragma("clang diagnostic ignored \"-Wfloat-equal\"")
#define TERSE_NUMERICS_END _Pragma("clang diagnostic pop") _Pragma("float_control(pop)")
#elif defined(__CUDACC__)
// nvcc hands the pragmas on to its host compiler, but not without saying that it doesn't know them itself.
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

/// Units compiled for different instruction sets may meet in one program; functions that differ by them are each set's own, in an
/// inline namespace of this name.
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

/// For the next loop over the lanes of a piece's last block, where it is incomplete: it runs once for a piece, and vector
/// instructions for any number of lanes would be most of a verb's code.
#if defined(__clang__)
#define TERSE_LAST_LANES _Pragma("clang loop vectorize(disable) interleave(disable) unroll(disable)")
#else
#define TERSE_LAST_LANES
#endif

/// Unrolls the next short loop of constant length, which else hides the loop around it from g++'s vectorizer at -O2.
#if defined(__clang__) || defined(__CUDA_ARCH__)
#define TERSE_UNROLL _Pragma("unroll")
#else
#define TERSE_UNROLL _Pragma("GCC unroll 8")
#endif

/// Leaves a kernel's next loop rolled up: for what is rare, and would only take instructions.
#ifdef __CUDA_ARCH__
#define TERSE_ROLLED _Pragma("unroll 1")
#else
#define TERSE_ROLLED
#endif

/// For the inside of verbs: a functor's arithmetic belongs into the verb's loop at every optimization level.
#define TERSE_INLINE inline __attribute__((always_inline))

/// Inlines a lambda under clang, which calls big lambdas, keeps their captures in memory and reads them anew for each vector. g++ inlines
/// them by itself; it doesn't vectorize lambdas that it is told to inline.
#if defined(__clang__) && !defined(__CUDACC__)
#define TERSE_INLINE_LAMBDA __attribute__((always_inline))
#else
#define TERSE_INLINE_LAMBDA
#endif

/// For what is thrown from one shared library and caught in another.
#define TERSE_VISIBLE __attribute__((visibility("default")))

/// For what several functions share, and none calls often.
#define TERSE_NO_INLINE __attribute__((noinline))

/// Inlines whatever the next function calls, users' functors included: a call in the loop over lanes would keep it
/// from becoming vector instructions.
#define TERSE_FLATTEN __attribute__((flatten))

/// For what runs once, or not at all: compiled to be small, which takes less time, too.
#if defined(__clang__) && !defined(__CUDACC__)
#define TERSE_COLD __attribute__((cold, minsize))
#else
#define TERSE_COLD __attribute__((cold))
#endif

/// True where the compiler can tell that a condition holds, once all is inlined: for work that may be left out and needn't
/// be, such as storing what is there already. Device compilers don't say, see executor/streams.hpp for what is done there.
#ifdef __CUDA_ARCH__
#define TERSE_KNOWN(condition) false
#else
#define TERSE_KNOWN(condition) (__builtin_constant_p(condition) && (condition))
#endif

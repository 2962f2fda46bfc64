// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/version.hpp"

// Functions that name no policy and have no loop over lanes have their bodies in .ipp files. A unit includes them
// inline by default. With TERSE_SEPARATE it sees only declarations. The program then links the core, which has all
// bodies (src/terse.cpp, and src/checkpoint.cpp for checkpoints).

#ifndef TERSE_SEPARATE
#define TERSE_CORE inline
#else
#define TERSE_CORE

#include <cstddef>  // for the macros of the standard library

// A core of another version, or with the standard library's other ABI, doesn't link with units of this one: its
// symbol has another name, which the linker reports.
#if !defined(__GLIBCXX__)
#define TERSE_CORE_ABI other
#elif _GLIBCXX_USE_CXX11_ABI
#define TERSE_CORE_ABI cxx11
#else
#define TERSE_CORE_ABI before_cxx11
#endif
#define TERSE_CORE_JOIN(major, minor, patch, abi) terse_core_##major##_##minor##_##patch##_##abi
#define TERSE_CORE_NAME(major, minor, patch, abi) TERSE_CORE_JOIN(major, minor, patch, abi)
#define TERSE_CORE_SYMBOL \
  TERSE_CORE_NAME(TERSE_VERSION_MAJOR, TERSE_VERSION_MINOR, TERSE_VERSION_PATCH, TERSE_CORE_ABI)

extern "C" __attribute__((visibility("default"))) const char TERSE_CORE_SYMBOL;

namespace terse::detail {
/// A reference to the symbol in every unit, even one that calls no function of the core.
[[gnu::used]] static const char* const needs_core = &TERSE_CORE_SYMBOL;
}  // namespace terse::detail
#endif

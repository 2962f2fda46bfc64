// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <typeinfo>

namespace terse {

namespace detail {

std::string demangled(const char* name);

}  // namespace detail

/// A type's name as its author writes it, or wrote it first, the same under g++ and clang++: "terse::Adam".
template <class T>
std::string type_name() {
  return detail::demangled(typeid(T).name());
}

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/core/type_name.ipp"
#endif

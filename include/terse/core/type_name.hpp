// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <typeinfo>

namespace terse {

namespace detail {

std::string demangled(const char* name);

}  // namespace detail

/// Returns a type's name as in its source, or its first name if it was renamed. It is equal under g++ and clang++:
/// "terse::Adam".
template <class T>
std::string type_name() {
  return detail::demangled(typeid(T).name());
}

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/core/type_name.ipp"
#endif

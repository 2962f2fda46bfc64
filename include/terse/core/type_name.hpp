// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>

#include <cstdlib>
#include <string>
#include <typeinfo>

namespace terse {

namespace detail {

inline std::string demangled(const char* name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);
  return result;
}

}  // namespace detail

/// A type's name as its author writes it, the same under g++ and clang++: "terse::Adam".
template <class T>
std::string type_name() {
  return detail::demangled(typeid(T).name());
}

}  // namespace terse

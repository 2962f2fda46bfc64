// SPDX-License-Identifier: Apache-2.0
#include "method.hpp"

#include <stdexcept>
#include <string>

namespace train {
namespace {

const Use* find_use(const Method& method, std::string_view option) {
  for (const Use& use : method.uses)
    if (use.option != nullptr && use.option == option) return &use;
  return nullptr;
}

}  // namespace

const Method* find_method(std::string_view word) {
  for (const Method& method : methods())
    if (word == method.name || (method.synonym != nullptr && word == method.synonym)) return &method;
  return nullptr;
}

const Method& method(std::string_view name) {
  if (const Method* const found = find_method(name)) return *found;
  throw std::logic_error("there is no method " + std::string(name));
}

bool uses(const Method& method, std::string_view option) { return find_use(method, option) != nullptr; }

std::optional<double> standard_of(const Method& method, std::string_view option) {
  const Use* const use = find_use(method, option);
  return use == nullptr ? std::nullopt : use->standard;
}

}  // namespace train

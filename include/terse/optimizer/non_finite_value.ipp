// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdio>

#include "terse/core/separate.hpp"
#include "terse/optimizer/non_finite_value.hpp"

namespace terse::detail {

TERSE_CORE std::string describe(const NonFiniteValue& found, const Layout& layout) {
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), "%g", static_cast<double>(found.value));
  return "element " + std::to_string(found.element) + " of segment '" +
         layout.segments()[static_cast<std::size_t>(found.segment)].name + "' is " + number.data();
}

TERSE_CORE void throw_parameters(const NonFiniteValue& found, const Layout& layout, const char* when,
                                 const char* advice, int rank, std::uint64_t step) {
  throw non_finite_error("the parameters of rank " + std::to_string(rank) + " are not finite " + when + ": " +
                             describe(found, layout) + advice,
                         rank, rank, static_cast<std::int64_t>(step));
}

TERSE_CORE void throw_non_finite(const NonFiniteValue& found, const Layout& layout, int culprit, bool known,
                                 int rank, std::uint64_t step, const char* lost) {
  using Arena = NonFiniteValue::Arena;
  const std::string who = "rank " + std::to_string(culprit);
  std::string text;
  if (found.arena == Arena::gradient)
    text = "the gradient of " + who + " is not finite: " + describe(found, layout) +
           (std::isfinite(found.value)
                ? ", whose product with gradient_scale is beyond 2^63, where squares overflow"
                : "");
  else if (found.arena == Arena::parameters)
    text = "the parameters of " + who + " are not finite: " + describe(found, layout) +
           (std::isfinite(found.value) ? ", beyond 2^63, where squares overflow" : "");
  else
    text = "a message or a sum of " + who +
           " is not finite (NaN, infinity, or too large for squares or its compressor)" +
           (known ? ", though its gradient and parameters are. Lower the learning rate or gradient_scale"
                  : ": look at the gradient and the parameters of that rank");
  if (lost != nullptr) text += std::string("; the step ended by \"") + lost + "\"";
  throw non_finite_error(text, culprit, rank, static_cast<std::int64_t>(step));
}

}  // namespace terse::detail

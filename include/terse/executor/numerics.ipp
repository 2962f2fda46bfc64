// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/separate.hpp"
#include "terse/executor/numerics.hpp"

namespace terse {

TERSE_CORE std::string describe_numerics(std::uint64_t faults) {
  std::string text;
  const auto say = [&](std::uint64_t fault, const char* sentence) {
    if ((faults & fault) != 0) text += std::string(text.empty() ? "" : "; ") + sentence;
  };
  say(detail::contracts,
      "joins a product and a sum into one operation (compile with -ffp-contract=off, device code with "
      "-fmad=false)");
  say(detail::flushes,
      "flushes subnormal numbers to zero (compile device code without -ftz=true; on the host don't link with "
      "-ffast-math or call torch.set_flush_denormal, which set the processor to it)");
  say(detail::divides,
      "divides by way of reciprocals (compile without -freciprocal-math, device code without "
      "-prec-div=false)");
  say(detail::roots, "takes approximate roots (compile device code without -prec-sqrt=false)");
  say(detail::reorders, "takes sums in another order (compile without -fassociative-math)");
  return text + "; -ffast-math and --use_fast_math do all of this";
}

TERSE_CORE std::string describe_numerics(const std::vector<std::uint64_t>& all, std::size_t count,
                                         std::size_t at) {
  for (std::size_t k = at; k < all.size(); k += count)
    if (all[k] != 0)
      return ". The arithmetic of rank " + std::to_string(k / count) + " " + describe_numerics(all[k]);
  return "";
}

namespace detail {

TERSE_CORE void check_numerics(std::uint64_t faults, int rank) {
  if (faults != 0)
    throw usage_error("this program's arithmetic has other bits than those that all ranks must have: it " +
                          describe_numerics(faults),
                      rank);
}

}  // namespace detail

}  // namespace terse

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "terse/laws/check.hpp"

/// All laws that apply hold.
template <class C, class F = terse::laws::DefaultFeedback<C>>
void holds(const C& compressor = {}, const terse::laws::Options& options = {.draws = 1000}) {
  const terse::laws::Report report = terse::laws::check<C, F>(compressor, options);
  CHECK_MESSAGE(report, report.text());
  CHECK(report.passed.size() >= 8);  // those that need no claim
}

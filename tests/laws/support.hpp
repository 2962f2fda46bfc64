// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "terse/laws/check.hpp"

/// All laws that apply hold; those named in `absent`, one after the other, do not apply.
template <class C, class F = terse::laws::DefaultFeedback<C>>
void holds(const C& compressor = {}, const terse::laws::Options& options = {}) {
  const terse::laws::Report report = terse::laws::check<C, F>(compressor, options);
  CHECK_MESSAGE(report, report.text());
  CHECK(report.passed.size() >= 7);
}

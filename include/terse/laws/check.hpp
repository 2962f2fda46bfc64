// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "terse/compressor/concept.hpp"
#include "terse/error_feedback/concept.hpp"
#include "terse/laws/adapter.hpp"
#include "terse/laws/feedback.hpp"
#include "terse/laws/report.hpp"
#include "terse/laws/shrink.hpp"
#include "terse/laws/theory.hpp"
#include "terse/laws/values.hpp"
#include "terse/laws/wire.hpp"

// Checks the contract of a compressor, also of a custom one; docs/laws.md lists the laws.
//
//     #include <terse/laws/check.hpp>
//
//     const terse::laws::Report report = terse::laws::check<MyCompressor>();
//     if (!report) std::puts(report.text().c_str());

namespace terse::laws {

/// Checks all laws on a compressor and error feedback of any types.
inline Report check_all(const Subject& subject, const Options& options) {
  Report report{.compressor = subject.claims().name, .passed = {}, .not_applicable = {}, .failures = {}};
  for (const auto& group : {wire_laws, value_laws, feedback_laws, theory_laws})
    for (const Law& law : group(subject, options)) {
      if (!law.applies) {
        report.not_applicable.push_back(law.name);
        continue;
      }
      bool held = true;
      for (const Example& example : law.examples) {
        std::string what = judge(law, example);
        if (what.empty()) continue;
        report.failures.push_back(
            Shrinker(law, example, std::move(what), law.shrinks ? options.attempts : 0)());
        held = false;
        break;
      }
      if (held) report.passed.push_back(law.name);
      if (!held && law.decides) return report;
    }
  return report;
}

/// Checks all laws on a compressor, by default with Residual if its error stays bounded and without feedback otherwise.
template <class C, class F = DefaultFeedback<C>>
Report check(const C& compressor = {}, const Options& options = {}, const F& feedback = {}) {
  static_assert(check_compressor<C>() && check_error_feedback<F>());
  static_assert(
      !Traits<C>::keyed,
      "terse: laws sum packets that are read without the reader's own vector; a keyed compressor (Lattice) "
      "has laws of its own");
  static_assert(
      C::lossless ||
          requires {
            typename C::Incoming;
            typename C::Source;
          },
      "terse: laws check compressors that turn one message into one section; one with a round of its own "
      "(LowRank) "
      "has laws of its own");
  return check_all(detail::Pair<C, F>(compressor, feedback), options);
}

}  // namespace terse::laws

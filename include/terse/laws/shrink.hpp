// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "terse/laws/report.hpp"
#include "terse/laws/subject.hpp"

namespace terse::laws {

/// Describes the violation of a law by an example, or the exception that it throws; "" if there is none.
inline std::string judge(const Law& law, const Example& example) {
  try {
    return law.violation(example);
  } catch (const std::exception& thrown) {
    return std::string("an exception: ") + thrown.what();
  }
}

/// A search for a smaller example that still fails: fewer messages, segments and elements, then simpler values.
class Shrinker {
 public:
  Shrinker(const Law& law, Example example, std::string what, int attempts)
      : law_(law), best_(std::move(example)), what_(std::move(what)), attempts_(attempts) {}

  Failure operator()() {
    for (bool smaller = true; smaller && attempts_ > 0;) {
      smaller = without_structure();
      smaller = without_messages() || smaller;
      smaller = without_elements() || smaller;
    }
    simpler_values();
    return {law_.name, best_.text() + "\n" + what_};
  }

 private:
  bool try_this(Example example) {
    if (attempts_ <= 0) return false;
    --attempts_;
    std::string what = judge(law_, example);
    if (what.empty()) return false;
    best_ = std::move(example);
    what_ = std::move(what);
    return true;
  }
  template <class Change>
  bool try_change(Change change) {
    Example example = best_;
    change(example);
    return try_this(std::move(example));
  }

  bool without_structure() {
    bool done = false;
    if (best_.parts > 1) done |= try_change([](Example& x) { x.parts = 1; });
    if (!best_.masked.empty()) done |= try_change([](Example& x) { x.masked.clear(); });
    if (!best_.excluded.empty()) done |= try_change([](Example& x) { x.excluded.clear(); });
    for (std::size_t s = best_.counts.size(); best_.counts.size() > 1 && s-- > 0;)
      done |= try_change([s](Example& x) {
        index_t begin = 0;
        for (std::size_t before = 0; before < s; ++before) begin += x.counts[before];
        drop(x, begin, x.counts[s]);
        x.counts.erase(x.counts.begin() + static_cast<std::ptrdiff_t>(s));
        if (!x.excluded.empty()) x.excluded.erase(x.excluded.begin() + static_cast<std::ptrdiff_t>(s));
      });
    return done;
  }
  bool without_messages() {
    bool done = false;
    for (std::size_t m = best_.messages.size(); best_.messages.size() > 1 && m-- > 0;)
      done |= try_change(
          [m](Example& x) { x.messages.erase(x.messages.begin() + static_cast<std::ptrdiff_t>(m)); });
    return done;
  }
  bool without_elements() {
    bool done = false;
    for (index_t run = std::max<index_t>(1, best_.elements() / 2);; run /= 2) {
      for (index_t begin = 0; begin + run <= best_.elements() && attempts_ > 0;) {
        if (try_change([=](Example& x) { drop(x, begin, run); }))
          done = true;
        else
          begin += run;
      }
      if (run == 1) return done;
    }
  }
  void simpler_values() {
    for (std::size_t m = 0; m < best_.messages.size(); ++m)
      for (std::size_t e = 0; e < best_.messages[m].size() && attempts_ > 0; ++e) {
        const float value = best_.messages[m][e];
        if (!std::isfinite(value) && try_change([=](Example& x) { x.messages[m][e] = 1; })) continue;
        if (!std::isfinite(value)) continue;
        const float unit = value < 0 ? -1.0F : 1.0F;
        const float power = std::fpclassify(value) == FP_ZERO
                                ? 0.0F
                                : unit * std::exp2(std::floor(std::log2(std::abs(value))));
        for (const float simple : {0.0F, unit, std::round(value), power, std::round(value * 16) / 16}) {
          if (same(simple, value)) break;
          if (try_change([=](Example& x) { x.messages[m][e] = simple; })) break;
        }
      }
  }

  /// Removes elements [begin, begin + count) from their segments.
  static void drop(Example& x, index_t begin, index_t count) {
    index_t at_segment = 0;
    for (index_t& held : x.counts) {
      const index_t end = at_segment + held;
      const index_t shared = std::min(end, begin + count) - std::max(at_segment, begin);
      at_segment = end;
      if (shared > 0) held -= shared;
    }
    const auto cut = [=](auto& values) {
      values.erase(values.begin() + static_cast<std::ptrdiff_t>(begin),
                   values.begin() + static_cast<std::ptrdiff_t>(begin + count));
    };
    for (Values& message : x.messages) cut(message);
    if (!x.masked.empty()) cut(x.masked);
  }

  const Law& law_;
  Example best_;
  std::string what_;
  int attempts_;
};

}  // namespace terse::laws

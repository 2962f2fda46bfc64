// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "terse/optimizer/optimizer.hpp"
#include "terse/plan.hpp"
#include "terse/predict/predict.hpp"
#include "terse/transport/any.hpp"

// How a method is tried.

namespace advise {

/// What all methods are tried with, alike on all ranks.
struct Setting {
  terse::AnyTransport& transport;
  terse::Layout layout;
  terse::Layout rehearsed;  // the same in small, whose steps are taken
  double gradient;          // s
};

/// Of one method, the rank that is last.
struct Figures {
  terse::predict::Step step;
  double memory = 0;  // bytes on the rank: parameters, gradient, state and packets
};

struct Method {
  std::string name;
  std::string dense;  // the full-precision method that it stands in for: its own name where it is one
  bool overlaps;      // its packets may leave while the gradient is computed
  std::function<Figures(const Setting&)> rehearse;
};

std::vector<Method> adam_methods();
std::vector<Method> sgd_methods();
std::vector<Method> local_methods(int period);
std::vector<Method> gossip_methods();

/// Bytes that this thread has allocated and not released.
std::int64_t allocated_bytes();

/// What the ranks' figures are together.
Figures last_of(const Setting& setting, const Figures& mine);

template <class R>
Figures figures_of(const R& recipe, const Setting& setting, int before, int steps,
                   terse::predict::Overlap overlap) {
  namespace predict = terse::predict;
  predict::Recording recording;
  predict::Recorded over(setting.transport.split(0, setting.transport.rank()), recording);
  Figures figures;
  terse::StepBytes whole;
  {
    const std::int64_t already = allocated_bytes();
    const terse::Optimizer optimizer{recipe, over, setting.layout};
    whole = optimizer.bytes_per_step();
    figures.memory = static_cast<double>(allocated_bytes() - already + 2 * 4 * setting.layout.size());
  }
  terse::Optimizer optimizer{recipe, over, setting.rehearsed};
  const terse::StepBytes part = optimizer.bytes_per_step();
  const predict::Rehearsal seen = predict::rehearse(optimizer, recording, before, steps, steps == 1 ? 3 : 1);
  const auto ratio = [](auto a, auto b) {
    return b == 0 ? 1 : static_cast<double>(a) / static_cast<double>(b);
  };
  figures.step = {.gradient = setting.gradient,
                  .local = seen.local * ratio(setting.layout.size(), setting.rehearsed.size()),
                  .round = predict::scaled(
                      seen.round, seen.compressed ? ratio(whole.compressed, part.compressed)
                                                  : ratio(whole.full_precision, part.full_precision)),
                  .overlap = overlap};
  const auto slices_in = [&](const terse::Layout& layout) {
    return static_cast<double>(
        terse::detail::slices_of(layout.range(),
                                 terse::detail::slice_bytes_of(optimizer.options().slice_bytes, false, false))
            .size());
  };
  figures.step.slices = slices_in(setting.layout);
  // Four slices are under way at a time. The rehearsal has written down all that it had. Not everything compressed is cut.
  if (!seen.compressed)
    figures.step.waves = std::max(1.0, figures.step.slices / 4) / slices_in(setting.rehearsed);
  return last_of(setting, figures);
}

/// A row of the table of methods. `before` steps, a first stage for one, don't count; `steps` are averaged.
template <class R>
Method method(std::string name, std::string dense, const R& recipe, int before = 2, int steps = 1,
              terse::predict::Overlap overlap = terse::predict::Overlap::none) {
  const bool overlaps = name == dense;
  return {std::move(name), std::move(dense), overlaps,
          [=](const Setting& setting) { return figures_of(recipe, setting, before, steps, overlap); }};
}

/// One that is compressed, and whose packets go in slices.
inline Method overlapping(Method method) {
  method.overlaps = true;
  return method;
}

}  // namespace advise

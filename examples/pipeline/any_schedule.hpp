// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/pipeline/schedule.hpp"

namespace pipeline {

/// One of the library's schedules, chosen when the program runs, so that pipelines are compiled once. Also an example of
/// a schedule of one's own.
struct AnySchedule {
  bool gpipe = true;
  terse::OneForwardOneBackward other;

  void check() const { other.check(); }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("gpipe", gpipe ? 1.0 : 0.0);
    other.settings(visit);
  }

  terse::index_t actions(terse::index_t micro_batches) const {
    return terse::GPipe::actions(micro_batches);  // either way
  }
  terse::index_t in_flight(int stage, int stages, terse::index_t micro_batches) const {
    return gpipe ? terse::GPipe::in_flight(stage, stages, micro_batches)
                 : other.in_flight(stage, stages, micro_batches);
  }
  terse::index_t lead() const { return gpipe ? terse::GPipe::lead() : other.lead(); }
  terse::Action at(terse::index_t k, int stage, int stages, terse::index_t micro_batches) const {
    return gpipe ? terse::GPipe::at(k, stage, stages, micro_batches)
                 : other.at(k, stage, stages, micro_batches);
  }
};

}  // namespace pipeline

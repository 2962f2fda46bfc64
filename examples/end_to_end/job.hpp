// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "options.hpp"
#include "terse/transport/any.hpp"

namespace end_to_end {

inline constexpr int stages = 4;
inline constexpr std::int64_t micro_batch = 16, micro_batches = 8;

/// What a method comes to. Bytes are those that the busiest rank sends.
struct Figures {
  std::string along, between;                      ///< what travels along the pipe, and between replicas
  double loss = 0;                                 ///< mean of the last epoch
  double held_out = 0;                             ///< of examples that were not trained on
  double forward = 0, backward = 0, replicas = 0;  ///< bytes of a step in the last epoch
  double whole_run = 0;                            ///< bytes of all epochs, first visits and warm-up steps in
  double modelled = 0;                             ///< seconds of a step
  double measured = 0;                             ///< 0: not measured
  double exact_loss = 0;  ///< of the same method with exact messages; 0: there is none
  bool must_meet_bar = false;
};

/// What every rank runs: all methods, one after the other. Collective; the same on all ranks.
std::vector<Figures> run_rank(const Options& options, terse::AnyTransport& world);

}  // namespace end_to_end

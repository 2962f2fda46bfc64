// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>

namespace end_to_end {

/// Something the user gave can't be used. `what()` is one clear line; the program ends with exit code 2.
class input_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Over { threads, mpi };

struct Options {
  Over transport = Over::threads;
  std::int64_t examples = 4096;  ///< of all replicas
  std::int64_t epochs = 6;
  std::int64_t timed_steps = 3;  ///< of which the fastest counts; 0: times are modelled alone
  double rate = 0.8;             ///< Mbit/s of each rank's link, each way
  double pass = 4;         ///< ms of a micro-batch's forward pass; the backward pass takes twice as long
  double bar = 4.0 / 4.3;  ///< share of the modelled gain that must be measured
  std::uint64_t seed = 1;
};

/// Nothing where help was asked for, which is then printed by who `prints`. Throws input_error.
std::optional<Options> parse_options(int argc, char** argv, bool prints);

}  // namespace end_to_end

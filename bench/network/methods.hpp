// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "terse/optimizer/options.hpp"
#include "terse/transport/any.hpp"

// The optimizers that the programs here measure, by name.

struct Settings {
  float learning_rate = 1e-3F;    // of methods around Adam; others have ten times as much
  std::uint64_t dense_steps = 1;  // that methods of two stages begin with
};

/// An optimizer behind one indirect call a step.
struct Stepper {
  virtual ~Stepper() = default;
  virtual void begin(std::vector<float>& x, const std::vector<float>& g) = 0;
  virtual void ready(std::int64_t segment) = 0;
  virtual terse::StepResult step(std::vector<float>& x, const std::vector<float>& g) = 0;
};

struct Method {
  std::string name;
  bool overlaps;  // is told `begin` and `ready`
  bool staged;    // has a stage of dense steps
  int period;     // of whose steps one sends
  std::function<std::unique_ptr<Stepper>(terse::AnyTransport&, const terse::Layout&, const terse::Options&,
                                         const Settings&)>
      make;
};

const std::vector<Method>& methods();
/// Throws usage_error.
const Method& method(const std::string& name, int rank);

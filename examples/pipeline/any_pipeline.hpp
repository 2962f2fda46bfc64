// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "any_schedule.hpp"
#include "coding.hpp"
#include "models.hpp"
#include "terse/pipeline/pipeline.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/metered.hpp"

namespace pipeline {

/// What stages talk over.
using Wire = terse::Metered<terse::AnyTransport>;

/// One stage's pipeline, whatever its messages are.
class AnyPipeline {
 public:
  virtual ~AnyPipeline() = default;
  virtual terse::PipelineResult train(std::span<const std::uint64_t> ids,
                                      std::span<const terse::index_t> lengths) = 0;
  virtual double evaluate(std::span<const std::uint64_t> ids, std::span<const terse::index_t> lengths) = 0;
  virtual terse::PipelineStatistics statistics() const = 0;
  virtual void reset_statistics() = 0;
};

/// What a pipeline is made of beside its coding, alike on all stages.
struct Settings {
  terse::PipelineOptions options;
  AnySchedule schedule;
  terse::index_t capacity = 0;  ///< examples that copies are kept of
  std::string mapped;           ///< the folder where these lie; empty: in RAM
};

/// Collective. `stage` and what it refers to must outlive it. Throws std::invalid_argument for what `why_not` says, and
/// what a Pipeline throws.
std::unique_ptr<AnyPipeline> make_pipeline(const Coding& coding, const Settings& settings, Wire& wire,
                                           Model& stage);

}  // namespace pipeline

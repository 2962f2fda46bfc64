// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <stdexcept>
#include <utility>

#include "any_memory.hpp"
#include "any_pipeline.hpp"
#include "terse/compressor/cast.hpp"
#include "terse/compressor/uniform.hpp"

// How the units that compile pipelines make them. Each has a family, and returns nullptr for what is none of it.

namespace pipeline {

using Made = std::unique_ptr<AnyPipeline>;
Made make_direct(const Coding& coding, const Settings& settings, Wire& wire, Model& stage);
Made make_block_changes(const Coding& coding, const Settings& settings, Wire& wire, Model& stage);
Made make_row_changes(const Coding& coding, const Settings& settings, Wire& wire, Model& stage);
Made make_changes_of_other_memories(const Coding& coding, const Settings& settings, Wire& wire, Model& stage);
Made make_wide_blocks(const Coding& coding, const Settings& settings, Wire& wire, Model& stage);

template <class Policy>
class MadePipeline final : public AnyPipeline {
 public:
  MadePipeline(Policy policy, const Settings& settings, Wire& wire, Model& stage)
      : pipeline_(std::move(policy), wire, stage, settings.options, settings.schedule) {}
  terse::PipelineResult train(std::span<const std::uint64_t> ids,
                              std::span<const terse::index_t> lengths) override {
    return pipeline_.train(ids, lengths);
  }
  double evaluate(std::span<const std::uint64_t> ids, std::span<const terse::index_t> lengths) override {
    return pipeline_.evaluate(ids, lengths);
  }
  terse::PipelineStatistics statistics() const override { return pipeline_.statistics(); }
  void reset_statistics() override { pipeline_.reset_statistics(); }

 private:
  terse::Pipeline<Policy, Wire, Model, AnySchedule> pipeline_;
};

template <class Policy>
Made make(Policy policy, const Settings& settings, Wire& wire, Model& stage) {
  return std::make_unique<MadePipeline<Policy>>(std::move(policy), settings, wire, stage);
}

/// The contraction that activations, or their changes, are rounded by.
template <int Bits, class G>
using Nearest = terse::Uniform<Bits, terse::Nearest, terse::Asymmetric, terse::MaxAbs, G>;
/// What gradients are rounded by, unbiased.
template <int Bits, class G>
using Unbiased = terse::Uniform<Bits, terse::Stochastic, terse::Symmetric, terse::MaxAbs, G>;

using Blocks = terse::PerBlock<block>;
using WideBlocks = terse::PerBlock<wide_block>;
using Rows = terse::PerSegment;

/// Calls make(Forward{}, Backward{}) with the compressors of these bits; nullptr where there are none.
template <class G, class Make>
Made with_bits(const Coding& coding, const Make& make) {
  const auto with_backward = [&](auto forward) -> Made {
    if (coding.backward_bits == 32) return make(forward, terse::Dense{});
    if (coding.backward_bits == 8) return make(forward, Unbiased<8, G>{});
    if (coding.backward_bits == 4) return make(forward, Unbiased<4, G>{});
    return nullptr;
  };
  if (coding.forward_bits == 2) return with_backward(Nearest<2, G>{});
  if (coding.forward_bits == 3) return with_backward(Nearest<3, G>{});
  if (coding.forward_bits == 4) return with_backward(Nearest<4, G>{});
  if (coding.forward_bits == 8) return with_backward(Nearest<8, G>{});
  return nullptr;
}

/// AcSgd with these parts.
template <class Format, class Whole, class Forward, class Backward>
Made make_changes(Forward forward, Backward backward, const Settings& settings, Wire& wire, Model& stage) {
  terse::AcSgd<Forward, Backward, AnyMemory<Format>, Whole> policy;
  policy.capacity = settings.capacity;
  policy.memory.folder = settings.mapped;
  policy.forward = forward;
  policy.backward = backward;
  return make(std::move(policy), settings, wire, stage);
}

}  // namespace pipeline

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>

#include "any_optimizer.hpp"
#include "terse/topology/all_gather.hpp"
#include "terse/topology/ring.hpp"
#include "terse/topology/scatter_gather.hpp"

namespace train {

/// Makes a rank's optimizers, on one device, and knows what they have sent.
class Workshop {
 public:
  virtual ~Workshop() = default;
  /// Of all its optimizers together.
  virtual const terse::Traffic& traffic() const = 0;
  /// Collective.
  virtual std::unique_ptr<AnyOptimizer> make(Optimizer kind, const Options& options, const Stages& stages,
                                             const terse::Layout& layout) = 0;
};

template <class P>
class TheWorkshop final : public Workshop {
 public:
  /// `traffic` is what the place's transport counts into.
  TheWorkshop(P place, const terse::Traffic& traffic) : place_(std::move(place)), traffic_(traffic) {}

  const terse::Traffic& traffic() const override { return traffic_; }

  std::unique_ptr<AnyOptimizer> make(Optimizer kind, const Options& options, const Stages& stages,
                                     const terse::Layout& layout) override {
    if constexpr (on_host)
      if (is_local(kind)) return make_local_optimizer(kind, options, stages.average_until, place_, layout);
    switch (kind) {
      case Optimizer::adam:
      case Optimizer::momentum_sgd:
        return make_dense_optimizer(kind, options, place_, layout);
      case Optimizer::error_feedback_sgd:
      case Optimizer::dist_error_feedback_sgd:
      case Optimizer::sign_sgd:
      case Optimizer::quantized_sgd:
        return make_quantized_optimizer(kind, options, place_, layout);
      case Optimizer::deep_gradient_compression:
      case Optimizer::ef21_sgd:
      case Optimizer::demo:
      case Optimizer::distributed_lion:
        if constexpr (on_host)
          return make_sparse_optimizer(kind, options, stages.ratio_warmup, place_, layout);
        break;
      case Optimizer::lamb:
      case Optimizer::one_bit_lamb:
        if constexpr (on_host) return make_lamb_optimizer(kind, options, stages.freeze, place_, layout);
        break;
      case Optimizer::muon:
        if constexpr (on_host) return make_muon_optimizer(options, place_, layout);
        break;
      case Optimizer::zero_one_adam:
        if constexpr (on_host) return make_zero_one_adam(options, stages, place_, layout);
        break;
      case Optimizer::power_sgd:
        if constexpr (on_host) return make_low_rank_optimizer(options, place_, layout);
        break;
      case Optimizer::one_bit_adam:
        if constexpr (on_host)
          if (!options.layers.empty())
            return make_layered_one_bit_adam(options, stages.freeze, place_, layout);
        switch (options.topology) {
          case Topology::ring:
            return make_one_bit_adam<terse::Ring>(options, stages.freeze, place_, layout);
          case Topology::all_gather:
            return make_one_bit_adam<terse::AllGather>(options, stages.freeze, place_, layout);
          case Topology::scatter_gather:
            return make_one_bit_adam<terse::ScatterGather>(options, stages.freeze, place_, layout);
        }
        break;
      default:
        if constexpr (on_host) return make_gossip_optimizer(kind, options, place_, layout);
    }
    // Options are refused before: see runs_on.
    throw std::logic_error(std::string(name(kind)) + " does not run on this device");
  }

 private:
  static constexpr bool on_host = std::is_same_v<typename P::Executor, terse::executor::host>;

  P place_;
  const terse::Traffic& traffic_;
};

}  // namespace train

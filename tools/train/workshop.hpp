// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "any_optimizer.hpp"

namespace train {

/// Makes a rank's optimizers, on one device, and knows what they have sent.
class Workshop {
 public:
  virtual ~Workshop() = default;
  /// Of all its optimizers together.
  virtual const terse::Traffic& traffic() const = 0;
  /// Collective.
  virtual std::unique_ptr<AnyOptimizer> make(const Method& method, const Options& options,
                                             const Stages& stages, const terse::Layout& layout) = 0;
};

template <class P>
class TheWorkshop final : public Workshop {
 public:
  /// `traffic` is what the place's transport counts into.
  TheWorkshop(P place, const terse::Traffic& traffic) : place_(std::move(place)), traffic_(traffic) {}

  const terse::Traffic& traffic() const override { return traffic_; }

  std::unique_ptr<AnyOptimizer> make(const Method& method, const Options& options, const Stages& stages,
                                     const terse::Layout& layout) override {
    const Order<P> order{method, options, stages, layout, place_};
    if constexpr (std::is_same_v<P, OnHost>) {
      return method.made.on_host(order);
    } else {
      // Options are refused before: see runs_on.
      if (method.made.on_cuda == nullptr)
        throw std::logic_error(std::string(method.name) + " does not run on this device");
      return method.made.on_cuda(order);
    }
  }

 private:
  P place_;
  const terse::Traffic& traffic_;
};

}  // namespace train

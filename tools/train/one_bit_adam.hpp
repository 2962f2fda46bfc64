// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "any_optimizer.hpp"
#include "terse/optimizer/one_bit_adam.hpp"

// For the units that make it on a place: one for each topology, since each holds six optimizers.

namespace train {

struct LayeredOneBitAdam;
struct OneBitAdamOverScatterGather;
struct OneBitAdamOverRing;
struct OneBitAdamOverAllGather;

/// Over the topology that was chosen or, on the host, with a compressor for each kind of layer.
template <class P>
Made make_one_bit_adam(const Order<P>& order) {
  if constexpr (std::is_same_v<P, OnHost>)
    if (!order.options.layers.empty()) return make<LayeredOneBitAdam>(order);
  switch (order.options.topology) {
    case Topology::ring:
      return make<OneBitAdamOverRing>(order);
    case Topology::all_gather:
      return make<OneBitAdamOverAllGather>(order);
    case Topology::scatter_gather:
      break;
  }
  return make<OneBitAdamOverScatterGather>(order);
}

template <class G, class P>
Made make_one_bit_adam_over(const Order<P>& order) {
  const auto with = [&]<class C>(C) {
    return made_anywhere(order,
                         terse::OneBitAdam<C, terse::FrozenVariance, G>{
                             .learning_rate = order.rate(),
                             .weight_decay = order.weight_decay(),
                             .bias_correction = order.options.bias_correction == BiasCorrection::first_stage,
                             .preconditioner = {terse::AtStep{order.stages.freeze},
                                                static_cast<float>(order.options.update_clip)}});
  };
  const auto with_scale = [&]<class S>(S) {
    switch (order.options.granularity) {
      case Granularity::block:
        return with(terse::ScaledSign<S, terse::PerBlock<4096>>{});
      case Granularity::whole:
        return with(terse::ScaledSign<S, terse::Whole>{});
      case Granularity::segment:
        break;
    }
    return with(terse::ScaledSign<S, terse::PerSegment>{});
  };
  return order.options.scale == Scale::mean_abs ? with_scale(terse::MeanAbs{})
                                                : with_scale(terse::RootMeanSquare{});
}

}  // namespace train

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "any_optimizer.hpp"
#include "terse/optimizer/one_bit_adam.hpp"

// The body of make_one_bit_adam, for the units that instantiate it.

namespace train {

template <class G, class P>
std::unique_ptr<AnyOptimizer> make_one_bit_adam(const Options& options, std::uint64_t freeze, P& place,
                                                const terse::Layout& layout) {
  const auto make = [&]<class C>(C) -> std::unique_ptr<AnyOptimizer> {
    using Recipe = terse::OneBitAdam<C, terse::FrozenVariance, G>;
    const Recipe recipe{
        .learning_rate = static_cast<float>(options.learning_rate),
        .weight_decay = static_cast<float>(options.weight_decay),
        .preconditioner = {terse::AtStep{freeze}, static_cast<float>(options.update_clip)},
    };
    return std::make_unique<TheOptimizer<Recipe, P>>(recipe, place, layout, terse_options(options));
  };
  const auto make_with = [&]<class S>(S) {
    switch (options.granularity) {
      case Granularity::block:
        return make(terse::ScaledSign<S, terse::PerBlock<4096>>{});
      case Granularity::whole:
        return make(terse::ScaledSign<S, terse::Whole>{});
      case Granularity::segment:
        break;
    }
    return make(terse::ScaledSign<S, terse::PerSegment>{});
  };
  return options.scale == Scale::mean_abs ? make_with(terse::MeanAbs{}) : make_with(terse::RootMeanSquare{});
}

}  // namespace train

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/chain.hpp"
#include "terse/compressor/packed.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/error_feedback/owners_residual.hpp"
#include "terse/optimizer/local/late_mean.hpp"
#include "terse/optimizer/local/local_updates.hpp"

namespace terse {

/// CocktailSGD's packets: the largest elements of a random share that is equal on all ranks, with 4 bits each.
using CocktailPicks = Chain<Uniform<4, Nearest, Symmetric, MaxAbs, PerBlock<128>>, Strata<false>, Largest>;

/// CocktailSGD: every `period` steps ranks send a few elements of their difference from a model that is equal on all
/// of them. They continue training while these are in flight. `delay` steps later they receive the mean in exchange
/// for the sent elements. See TradeForMean for the equations, and Streaming for the schedule.
///
///     CocktailSgd<Adam<>>{.inner = {.learning_rate = 1e-3F}}        a tenth at random, of that the largest fifth
///     CocktailSgd<Adam<>, TopK<>, OwnersResidual, AllGather>{.period = 4}
///
/// Ranks differ; the model is the anchor, which `read_out(ReadOut::current, view)` writes without communication.
/// Owners keep the error of recompressed means. State: the inner recipe's; anchor and message in flight, n floats
/// each; the owners' errors.
///
/// Source: Wang, Lu, Yuan, Chen, Liang, De Sa, Ré and Zhang, "CocktailSGD: fine-tuning foundation models over 500Mbps networks",
/// ICML 2023.
template <class Inner, Compressor C = CocktailPicks, ErrorFeedback F = OwnersResidual,
          Topology T = ScatterGather>
struct CocktailSgd {
  Inner inner{};                               ///< the recipe of local steps
  std::uint64_t period = 1;                    ///< steps between two messages, at least 1
  C compressor = picks();                      ///< compressor of messages
  F error_feedback{};                          ///< error feedback of recompressed means
  T topology{};                                ///< communication pattern
  Streaming schedule{.count = 1, .delay = 1};  ///< number of fragments, and delay of their means

  recipes::LocalUpdatesOf<Inner, TradeForMean, Streaming, Inside::alone, C, F, T> composition() const {
    return {.inner = inner,
            .period = period,
            .compressor = compressor,
            .error_feedback = error_feedback,
            .topology = topology,
            .schedule = schedule};
  }

 private:
  /// Returns the paper's ratios: a tenth at random, and the largest fifth of it.
  static C picks() {
    C compressor{};
    if constexpr (std::is_same_v<C, CocktailPicks>) {
      compressor.selection.first.ratio = 0.1;
      compressor.selection.second.ratio = 0.2;
    }
    return compressor;
  }
};

}  // namespace terse

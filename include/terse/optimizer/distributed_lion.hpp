// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/ternary.hpp"
#include "terse/momentum_correction/local_lion.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// See DistributedLion and AveragedLion.
template <class Outcome>
struct DistributedLionBy {
  template <class C, class F, class T>
  struct Of {
    float learning_rate = 1e-4F;     ///< factor of the step; may change from step to step
    float beta1 = 0.9F;              ///< of the direction that is sent; in [0, 1)
    float beta2 = 0.99F;             ///< of the momentum that is kept; in [0, 1)
    float weight_decay = 0;          ///< decoupled from the gradient
    std::uint64_t warmup_steps = 0;  ///< the first steps, in full precision
    C compressor{};                  ///< of messages
    F error_feedback{};              ///< what becomes of what compression loses
    T topology{};                    ///< the way messages take between ranks

    auto composition() const {
      return averaging_of(*this, LocalLion<Outcome>{beta1, beta2}, NoPreconditioner{});
    }
  };
};

/// Distributed Lion by majority vote: each rank votes with the sign of its own Lion step, two bits up, and all step by the
/// sign of the sum, two bits down; a tie is no step. Rates and decay as Lion's. State: n floats, each rank's own. The vote is
/// exact over ScatterGather, whose owners send on the sign of the sum, and over AllGather.
///
/// Source: Liu et al., "Communication efficient distributed training with distributed Lion", NeurIPS 2024 (arXiv 2404.00438),
/// algorithm 1, "MaVo".
template <class... Ps>
using DistributedLion = Sorted<DistributedLionBy<Counted<>>::Of, TakesMeans,
                               Policies<Unchecked<UnitTernary>, NoErrorFeedback, ScatterGather>, Ps...>;

/// The same by the mean of the votes, which is exact in integers: the paper's "Avg". Each rank sends its votes to all others, two
/// bits an element.
template <class... Ps>
using AveragedLion = Sorted<DistributedLionBy<Averaged>::Of, TakesMeans,
                            Policies<Unchecked<UnitTernary>, NoErrorFeedback, AllGather>, Ps...>;

}  // namespace terse

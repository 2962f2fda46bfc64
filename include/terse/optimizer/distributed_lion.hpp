// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/ternary.hpp"
#include "terse/momentum_correction/local_lion.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of DistributedLion and AveragedLion.
template <class Outcome>
struct DistributedLionBy {
  template <class C, class F, class T>
  struct Of {
    float learning_rate = 1e-4F;     ///< step size; may change between steps
    float beta1 = 0.9F;              ///< decay rate in the direction that is sent; in [0, 1)
    float beta2 = 0.99F;             ///< decay rate of the momentum that is kept; in [0, 1)
    float weight_decay = 0;          ///< coefficient, decoupled from the gradient
    std::uint64_t warmup_steps = 0;  ///< number of first steps in full precision
    C compressor{};                  ///< compressor of the messages
    F error_feedback{};              ///< handling of the compression error
    T topology{};                    ///< communication pattern between ranks

    auto composition() const {
      return averaging_of(*this, LocalLion<Outcome>{beta1, beta2}, NoPreconditioner{});
    }
  };
};

}  // namespace recipes

/// Distributed Lion by majority vote. Each rank sends the sign of its own Lion step (two bits per element), and all ranks step by
/// the sign of the sum (two bits per element). In a tie an element does not move. Rates and decay as Lion's. State: n floats,
/// which differ between ranks. The vote is exact over ScatterGather, whose owners forward the sign of the sum, and over AllGather.
///
/// Source: Liu et al., "Communication efficient distributed training with distributed Lion", NeurIPS 2024 (arXiv 2404.00438),
/// algorithm 1, "MaVo".
template <class... Ps>
using DistributedLion = Sorted<recipes::DistributedLionBy<Counted<>>::Of, TakesMeans,
                               Policies<Unchecked<UnitTernary>, NoErrorFeedback, ScatterGather>, Ps...>;

/// Distributed Lion by the mean of the votes, which is exact in integers: the paper's "Avg". Each rank sends its votes to all
/// others, two bits per element.
template <class... Ps>
using AveragedLion = Sorted<recipes::DistributedLionBy<Averaged>::Of, TakesMeans,
                            Policies<Unchecked<UnitTernary>, NoErrorFeedback, AllGather>, Ps...>;

}  // namespace terse

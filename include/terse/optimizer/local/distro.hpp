// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/drop_quantization_error.hpp"
#include "terse/compressor/mean_over_senders.hpp"
#include "terse/compressor/ternary.hpp"
#include "terse/error_feedback/owners_residual.hpp"
#include "terse/optimizer/averaging.hpp"
#include "terse/optimizer/local/late_sign.hpp"
#include "terse/optimizer/local/local_updates.hpp"

namespace terse {

/// DisTrO's packets: the signs of the largest cosine waves of each tile, averaged over the ranks that sent the wave.
/// The sign of 0 is 0, so a tile without a gradient doesn't move. UnitSign is half as large, but counts 0 as
/// positive.
using DisTrOWaves = MeanOverSenders<Dct<64, Sparse<Largest, DropQuantizationError<UnitTernary>, PerSegment>>>;

namespace recipes {

/// The recipe of DisTrO.
template <class C, class F, class T>
struct DisTrOOf {
  float learning_rate = 2e-4F;  ///< factor of the step; may change from step to step
  float weight_decay = 0;       ///< decoupled from the gradient
  float decay = 0.995F;         ///< factor of the memory
  C compressor = sparsest();    ///< compressor of messages
  F error_feedback{};           ///< error feedback of recompressed means
  T topology{};                 ///< communication pattern

  LocalUpdatesOf<Averaging<>, LateSign, Overlapped, Inside::alone, C, F, T> composition() const {
    return {.inner = {.learning_rate = learning_rate},
            .period = 1,
            .outer = {.decay = decay, .weight_decay = weight_decay},
            .compressor = compressor,
            .error_feedback = error_feedback,
            .topology = topology};
  }

 private:
  /// Returns the compressor of the original code: 4 coefficients of a tile of 64 x 64.
  static C sparsest() {
    C compressor{};
    if constexpr (requires { compressor.inner.selection.ratio; })
      compressor.inner.selection.ratio = 4.0 / 4096;
    return compressor;
  }
};

}  // namespace recipes

/// DisTrO: DeMo with signs only, and with a mean that comes a step late, so that no rank waits for it. Gradients are
/// computed at the point to which a rank's own memory would move the model next:
///
///     m_i = decay (m_i - DCT^-1(q_i)) + learning_rate g_i               q_i = the largest of DCT(m_i), sent as signs
///     x = x - learning_rate (sign(DCT^-1(mean q_i)) + weight_decay x)   a step later
///     parameters of rank i: x - learning_rate (sign(m_i) + weight_decay x)
///
/// See LateSign for the order. Ranks differ; the model x is the anchor, which `read_out(ReadOut::current, view)` writes without
/// communication. Options::clip_norm bounds each rank's own gradient. State: x, m_i and the message, n floats each.
///
///     DisTrO<>{.weight_decay = 0.1F}
///     DisTrO<Dct<64, TopK<>>>{}        values as fp32, whose means are over all ranks
///
/// Source: Peng, Quesnelle and Kingma, "DeMo", 2024; DisTrO in the code of Psyche (PsycheFoundation/psyche), 2025.
template <class... Ps>
using DisTrO = Sorted<recipes::DisTrOOf, TakesMeans, Policies<DisTrOWaves, AllGather, OwnersResidual>, Ps...>;

}  // namespace terse

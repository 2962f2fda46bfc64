// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/tiled.hpp"
#include "terse/optimizer/local/local_updates.hpp"

namespace terse {

/// SparseLoCo: every `period` steps of the inner recipe, alone on its rank, ranks send the largest elements of each
/// tile of e_i. e_i sums their moves and the unsent part of earlier ones:
///
///     e_i = decay e_i + (anchor - x_i)        s_i = the largest of each tile of e_i        e_i = e_i - s_i
///     x = anchor - rate mean_i s_i, the next anchor
///
///     SparseLoCo<Adam<>>{.inner = {.learning_rate = 4e-4F}, .period = 30}
///     SparseLoCo<Adam<>, Tiles<64, Sparse<Largest, TwoMagnitudeSign<>, PerSegment>>>    2 bits for a pick's value
///
/// The memory e is the error of the error feedback. After an outer step all ranks have equal bits. Defaults: 64
/// elements of a tile of 64 x 64, a decay of 0.95, a rate of 1. State: the inner recipe's; anchor and e, n floats
/// each.
///
/// Source: Sarfi, Therien, Lidin and Belilovsky, "Communication efficient LLM pre-training with SparseLoCo", 2025 (arXiv
/// 2508.15706).
template <class Inner, Compressor C = Tiles<>, ErrorFeedback F = Residual, Topology T = AllGather>
struct SparseLoCo {
  static_assert(
      requires(F feedback) { feedback.decay; },
      "terse: SparseLoCo's memory is an error feedback with a decay: Residual");

  Inner inner{};              ///< the recipe of local steps
  std::uint64_t period = 30;  ///< steps between two meetings, at least 1
  float decay = 0.95F;        ///< factor of the memory; it replaces error_feedback.decay
  OuterDescent outer{};       ///< the outer step
  C compressor = sparse();    ///< compressor of messages
  F error_feedback{};         ///< treatment of the compression error
  T topology{};               ///< communication pattern

  auto composition() const {
    recipes::LocalUpdatesOf<Inner, OuterDescent, Synchronous, Inside::alone, C, F, T> local{
        .inner = inner,
        .period = period,
        .outer = outer,
        .compressor = compressor,
        .error_feedback = error_feedback,
        .topology = topology};
    local.error_feedback.decay = decay;
    return local;
  }

 private:
  /// Returns the paper's compressor: 64 elements of a tile of 64 x 64.
  static C sparse() {
    C compressor{};
    if constexpr (requires { compressor.inner.selection.ratio; })
      compressor.inner.selection.ratio = 64.0 / 4096;
    return compressor;
  }
};

}  // namespace terse

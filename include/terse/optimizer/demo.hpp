// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/tiled.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// See DeMo.
template <class C, class F, class T>
struct DeMoOf {
  static_assert(
      requires(F feedback) { feedback.decay; },
      "terse: DeMo's momentum is an error feedback with a decay: Residual");

  float learning_rate = 4e-4F;     ///< factor of the step; may change from step to step
  float weight_decay = 0;          ///< decoupled from the gradient
  float decay = 0.999F;            ///< of the momentum; error_feedback.decay is this one
  std::uint64_t warmup_steps = 0;  ///< the first steps, in full precision
  C compressor = sparsest();       ///< of messages
  F error_feedback{};              ///< what becomes of what compression loses
  T topology{};                    ///< the way messages take between ranks

  auto composition() const {
    auto averaging = averaging_of(*this, NoMomentum{}, SignStep{});
    averaging.error_feedback.decay = decay;
    return averaging;
  }

 private:
  /// The paper's 32 coefficients of a tile of 64 x 64.
  static C sparsest() {
    C compressor{};
    if constexpr (requires { compressor.inner.selection.ratio; })
      compressor.inner.selection.ratio = 32.0 / 4096;
    return compressor;
  }
};

/// DeMo: of each rank's momentum the largest cosine waves of each tile are sent, and taken out of it; all step by the sign
/// of their mean:
///
///     m_i = decay m_i + g_i        q_i = the largest of DCT(m_i)        m_i = m_i - DCT^-1(q_i)
///     x = x - learning_rate (sign(DCT^-1(mean q_i)) + weight_decay x)
///
/// The momentum is an error feedback's error. Rates are Adam's and below. `.error_feedback = {.follows_rate = true}` keeps, as
/// the authors' code does, a momentum of learning_rate * g. State: n floats, each rank's own.
///
///     DeMo<>{.compressor = {.inner = {.selection = {.ratio = 4.0 / 4096}}}}
///
/// Source: Peng, Quesnelle and Kingma, "DeMo: decoupled momentum optimization", arXiv 2411.19870, 2024, algorithm 1.
template <class... Ps>
using DeMo = Sorted<DeMoOf, TakesMeans, Policies<Dct<>, AllGather, Residual>, Ps...>;

}  // namespace terse

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/tiled.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of DeMo.
template <class C, class F, class T>
struct DeMoOf {
  static_assert(
      requires(F feedback) { feedback.decay; },
      "terse: DeMo's momentum is an error feedback with a decay: Residual");

  float learning_rate = 4e-4F;     ///< step size; may change between steps
  float weight_decay = 0;          ///< coefficient, decoupled from the gradient
  float decay = 0.999F;            ///< decay rate of the momentum; replaces error_feedback.decay
  std::uint64_t warmup_steps = 0;  ///< number of first steps in full precision
  C compressor = sparsest();       ///< compressor of the messages
  F error_feedback{};              ///< handling of the compression error
  T topology{};                    ///< communication pattern between ranks

  auto composition() const {
    auto averaging = averaging_of(*this, NoMomentum{}, SignStep{});
    averaging.error_feedback.decay = decay;
    return averaging;
  }

 private:
  /// Returns a compressor with the paper's 32 coefficients per tile of 64 x 64.
  static C sparsest() {
    C compressor{};
    if constexpr (requires { compressor.inner.selection.ratio; })
      compressor.inner.selection.ratio = 32.0 / 4096;
    return compressor;
  }
};

}  // namespace recipes

/// DeMo: each rank sends the largest cosine coefficients of each tile of its momentum, and subtracts them from it. All ranks
/// step by the sign of their mean:
///
///     m_i = decay m_i + g_i        q_i = the largest of DCT(m_i)        m_i = m_i - DCT^-1(q_i)
///     x = x - learning_rate (sign(DCT^-1(mean q_i)) + weight_decay x)
///
/// The momentum is the error of the error feedback. Learning rates are at most Adam's. With `.error_feedback = {.follows_rate =
/// true}` the momentum is that of learning_rate * g, as in the authors' code. State: n floats, which differ between ranks.
///
///     DeMo<>{.compressor = {.inner = {.selection = {.ratio = 4.0 / 4096}}}}
///
/// Source: Peng, Quesnelle and Kingma, "DeMo: decoupled momentum optimization", arXiv 2411.19870, 2024, algorithm 1.
template <class... Ps>
using DeMo = Sorted<recipes::DeMoOf, TakesMeans, Policies<Dct<>, AllGather, Residual>, Ps...>;

}  // namespace terse

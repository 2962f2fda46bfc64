// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/averaging.hpp"
#include "terse/optimizer/for_hidden_matrices.hpp"
#include "terse/preconditioner/newton_schulz.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of Muon.
template <class P, class C, class F, class T>
struct MuonOf {
  static_assert(P::facts.orthogonalizes,
                "terse: Muon takes NewtonSchulz or PolarExpress as its preconditioner");

  float learning_rate = 1e-3F;     ///< step size; may change between steps
  float weight_decay = 0;          ///< coefficient, decoupled from the gradient
  float momentum = 0.95F;          ///< momentum factor of hidden matrices
  bool nesterov = true;            ///< true for Nesterov momentum
  P hidden{};                      ///< preconditioner of hidden matrices
  float beta1 = 0.9F;              ///< for all other segments, as the next three: Adam's
  float beta2 = 0.999F;            ///< decay rate of the variance; in [0, 1)
  float epsilon = 1e-8F;           ///< added to the denominator, outside the root
  bool bias_correction = true;     ///< true for Adam's bias correction
  std::uint64_t warmup_steps = 0;  ///< number of first steps in full precision
  C compressor{};                  ///< compressor of the messages
  F error_feedback{};              ///< handling of the compression error
  T topology{};                    ///< communication pattern between ranks

  auto composition() const {
    return averaging_of(
        *this,
        ForHiddenMatrices<HeavyBall, ExponentialAverage>{{{momentum, nesterov}, {beta1, bias_correction}}},
        ForHiddenMatrices<P, AdamVariance>{{hidden, {beta2, epsilon, bias_correction}}, {}});
  }
};

}  // namespace recipes

/// Muon: orthogonalized momentum (all singular values about 1) for hidden matrices of rows x columns, see Segment::hidden. g is
/// the mean gradient:
///
///     m = momentum m + g                                 u = g + momentum m          X = NewtonSchulz(u), about U V^T where u = U S V^T
///     x = x - learning_rate (scale X + weight_decay x)   scale = 0.2 sqrt(max(rows, columns)), or Jordan's: MatrixScale
///
/// All other segments (embeddings, heads, vectors) use Adam. The sequence of polynomials is a policy: Muon<PolarExpress>.
///
/// Cost: Adam's, and that of the products, see Orthogonal, which each rank computes for all matrices. Wire: as Adam. State: 2
/// n floats, and n for the steps between the sweeps. Source: Jordan et al., "Muon: an optimizer for hidden layers in neural
/// networks", 2024; scale and weight decay: Liu et al., "Muon is scalable for LLM training", 2025 (arXiv 2502.16982), section
/// 2.2.
template <class... Ps>
using Muon = Sorted<recipes::MuonOf,
                    Takes<PolicyKind::preconditioner, PolicyKind::compressor, PolicyKind::error_feedback,
                          PolicyKind::topology>,
                    Policies<NewtonSchulz>, Ps...>;

}  // namespace terse

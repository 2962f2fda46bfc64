// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/averaging.hpp"
#include "terse/optimizer/on_hidden.hpp"
#include "terse/preconditioner/newton_schulz.hpp"

namespace terse {

/// See Muon.
template <class P, class C, class F, class T>
struct MuonOf {
  static_assert(P::facts.orthogonalizes,
                "terse: Muon takes NewtonSchulz or PolarExpress as its preconditioner");

  float learning_rate = 1e-3F;     ///< factor of the step; may change from step to step
  float weight_decay = 0;          ///< decoupled from the gradient
  float momentum = 0.95F;          ///< of hidden matrices
  bool nesterov = true;            ///< whether the step looks ahead along the momentum
  P hidden{};                      ///< the preconditioner of hidden matrices
  float beta1 = 0.9F;              ///< these four are Adam's, of all other segments
  float beta2 = 0.999F;            ///< of the variance; in [0, 1)
  float epsilon = 1e-8F;           ///< outside the root
  bool bias_correction = true;     ///< of Adam's averages
  std::uint64_t warmup_steps = 0;  ///< the first steps, in full precision
  C compressor{};                  ///< of messages
  F error_feedback{};              ///< what becomes of what compression loses
  T topology{};                    ///< the way messages take between ranks

  auto composition() const {
    return averaging_of(
        *this, OnHidden<HeavyBall, ExponentialAverage>{{{momentum, nesterov}, {beta1, bias_correction}}},
        OnHidden<P, AdamVariance>{{hidden, {beta2, epsilon, bias_correction}}, {}});
  }
};

/// Muon: momentum whose singular values are made 1, on the mean gradient g of each hidden matrix, see Segment::hidden, of
/// rows x columns:
///
///     m = momentum m + g          u = g + momentum m          X = NewtonSchulz(u), about U V^T where u = U S V^T
///     x = x - learning_rate (scale X + weight_decay x)        scale = 0.2 sqrt(max(rows, columns)), or Jordan's: MatrixScale
///
/// and Adam on all other segments: embeddings, heads, vectors. Another sequence of polynomials is a policy: Muon<PolarExpress>.
///
/// Cost beside Adam's: see Orthogonal; each rank does it for all matrices. Wire: as Adam. State: 2 n floats, n for the steps
/// between the sweeps. Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; scale and
/// weight decay: Liu et al., "Muon is scalable for LLM training", 2025 (arXiv 2502.16982), section 2.2.
template <class... Ps>
using Muon = Sorted<MuonOf,
                    Takes<PolicyKind::preconditioner, PolicyKind::compressor, PolicyKind::error_feedback,
                          PolicyKind::topology>,
                    Policies<NewtonSchulz>, Ps...>;

}  // namespace terse

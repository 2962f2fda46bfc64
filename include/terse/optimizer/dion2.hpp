// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/momentum_correction/row_momentum.hpp"
#include "terse/optimizer/averaging.hpp"
#include "terse/optimizer/on_hidden.hpp"
#include "terse/preconditioner/elementwise.hpp"
#include "terse/preconditioner/orthogonal_rows.hpp"

namespace terse {

/// See Dion2.
template <class P, class C, class F, class T>
struct Dion2Of {
  static_assert(
      requires { requires P::Sequence::one_in >= 1; },
      "terse: Dion2 takes as its preconditioner OrthogonalRows<N>, one row in N");

  float learning_rate = 0.01F;            ///< factor of the step; may change from step to step
  float weight_decay = 0;                 ///< decoupled from the gradient
  float momentum = 0.95F;                 ///< what stays of the rows that a step was taken along; in [0, 1)
  P hidden{.scale = MatrixScale::shape};  ///< the preconditioner of hidden matrices
  float beta1 = 0.9F;                     ///< these four are Adam's, of all other segments
  float beta2 = 0.999F;                   ///< of the variance; in [0, 1)
  float epsilon = 1e-8F;                  ///< outside the root
  bool bias_correction = true;            ///< of Adam's averages
  std::uint64_t warmup_steps = 0;         ///< the first steps, in full precision
  C compressor{};                         ///< of messages
  F error_feedback{};                     ///< what becomes of what compression loses
  T topology{};                           ///< the way messages take between ranks

  auto composition() const {
    return averaging_of(*this,
                        OnHidden<RowMomentum, ExponentialAverage>{{{momentum}, {beta1, bias_correction}}},
                        OnHidden<P, AdamVariance>{{hidden, {beta2, epsilon, bias_correction}}, {}});
  }
};

/// Dion2: Muon on a part of each hidden matrix, see Segment::hidden. With the mean gradient g, of a matrix with no more rows than
/// columns (of others, columns take the place of rows)
///
///     M = M + g        K = the ceil(rows / N) rows of M of the largest sums of magnitudes
///     U = NewtonSchulz(M[K])        M[K] = momentum M[K]
///     x = x - learning_rate weight_decay x        x[K] = x[K] - learning_rate scale U
///
/// and Adam on all other segments. What is not chosen adds up in M until it is: M is an error feedback in the place of a momentum.
/// N is the preconditioner's, 4 by default:
///
///     Dion2<OrthogonalRows<8>>{.learning_rate = 0.02F}
///
/// With N = 1 it is Muon without Nesterov. Takes a compressor, an error feedback and a topology, too. Wire: as Adam; it is the
/// products that are fewer. State: 2 n floats, n for the steps between the sweeps, and those of OrthogonalRows. Source: Ahn, Amsel and Langford,
/// "Dion2: a simple method to shrink matrix in Muon", 2025 (arXiv 2512.16928).
template <class... Ps>
using Dion2 = Sorted<Dion2Of,
                     Takes<PolicyKind::preconditioner, PolicyKind::compressor, PolicyKind::error_feedback,
                           PolicyKind::topology>,
                     Policies<OrthogonalRows<4>>, Ps...>;

}  // namespace terse

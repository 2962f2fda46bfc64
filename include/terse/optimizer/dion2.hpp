// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/momentum_correction/row_momentum.hpp"
#include "terse/optimizer/averaging.hpp"
#include "terse/optimizer/for_hidden_matrices.hpp"
#include "terse/preconditioner/elementwise.hpp"
#include "terse/preconditioner/orthogonal_rows.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of Dion2.
template <class P, class C, class F, class T>
struct Dion2Of {
  static_assert(
      requires { requires P::Sequence::one_in >= 1; },
      "terse: Dion2 takes as its preconditioner OrthogonalRows<N>, one row in N");

  float learning_rate = 0.01F;            ///< step size; may change between steps
  float weight_decay = 0;                 ///< coefficient, decoupled from the gradient
  float momentum = 0.95F;                 ///< factor on the chosen rows after a step; in [0, 1)
  P hidden{.scale = MatrixScale::shape};  ///< preconditioner of hidden matrices
  float beta1 = 0.9F;                     ///< decay rate of Adam's momentum; in [0, 1)
  float beta2 = 0.999F;                   ///< decay rate of the variance; in [0, 1)
  float epsilon = 1e-8F;                  ///< added to the denominator, outside the root
  bool bias_correction = true;            ///< true for Adam's bias correction
  std::uint64_t warmup_steps = 0;         ///< number of first steps in full precision
  C compressor{};                         ///< compressor of the messages
  F error_feedback{};                     ///< handling of the compression error
  T topology{};                           ///< communication pattern between ranks

  auto composition() const {
    return averaging_of(
        *this, ForHiddenMatrices<RowMomentum, ExponentialAverage>{{{momentum}, {beta1, bias_correction}}},
        ForHiddenMatrices<P, AdamVariance>{{hidden, {beta2, epsilon, bias_correction}}, {}});
  }
};

}  // namespace recipes

/// Dion2: Muon on a part of each hidden matrix, see Segment::hidden. Let g be the mean gradient of a matrix that has no more
/// rows than columns. (Otherwise columns take the place of rows.)
///
///     M = M + g                              K = the ceil(rows / N) rows of M with the largest sums of magnitudes
///     U = NewtonSchulz(M[K])                 M[K] = momentum M[K]
///     x = x - learning_rate weight_decay x   x[K] = x[K] - learning_rate scale U
///
/// All other segments use Adam. Rows that are not chosen accumulate in M until they are: M is an error feedback instead of a
/// momentum. N is a parameter of the preconditioner, 4 by default:
///
///     Dion2<OrthogonalRows<8>>{.learning_rate = 0.02F}
///
/// With N = 1 it is Muon without Nesterov momentum. Also takes a compressor, an error feedback and a topology. Wire: as with
/// Adam; only the matrix products become smaller. State: 2 n floats, n for the steps between the sweeps, and those of
/// OrthogonalRows. Source: Ahn, Amsel and Langford, "Dion2: a simple method to shrink matrix in Muon", 2025 (arXiv 2512.16928).
template <class... Ps>
using Dion2 = Sorted<recipes::Dion2Of,
                     Takes<PolicyKind::preconditioner, PolicyKind::compressor, PolicyKind::error_feedback,
                           PolicyKind::topology>,
                     Policies<OrthogonalRows<4>>, Ps...>;

}  // namespace terse

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>

#include "terse/preconditioner/concept.hpp"
#include "terse/preconditioner/orthogonalizer.hpp"

// Preconditioners of whole matrices: they change a direction's singular values to about 1.

namespace terse {

TERSE_NUMERICS_BEGIN

/// The factor on the step of a hidden matrix, whose singular values are about 1.
enum class MatrixScale {
  shape,  ///< sqrt(max(1, rows / columns)), Jordan's: for Muon's usual learning rates, such as 0.02
  rms  ///< 0.2 sqrt(max(rows, columns)), Moonlight's: elements as large as Adam's, so use Adam's learning rates
};

/// The orthogonalized step of hidden matrices, of rows x columns:
///
///     X = u / (margin ||u||_F);   then for each of the Sequence's steps   A = X X^T,  X = a X + (b A + c A A) X
///     x = x - learning_rate (scale X + weight_decay x)
///
/// Let u = U S V^T be their direction; then X approximates its orthogonal factor U V^T. Other segments step along their
/// direction. The step does not depend on the magnitude of u, even if u is tiny. A matrix of zeros has a step of 0.
///
/// State: none. Memory: n floats for u between the sweeps, as many floats as the largest hidden matrix has elements, and 4 m^2
/// floats, where m is its shorter side. Operations for a matrix of m x n, m <= n: 15 m^2 n + 5 m^3, or 3 m^2 n + 17 m^3 if
/// n >= 2 m; equal on all ranks. Sequence has `steps`, an array of Quintic, and `margin`.
template <class Sequence_>
struct Orthogonal {
  using Sequence = Sequence_;
  static constexpr PreconditionerFacts facts{.layer_wise = true, .orthogonalizes = true};
  static constexpr std::array<const char*, 0> state{};

  MatrixScale scale = MatrixScale::rms;  ///< the factor on a matrix's step

  template <class Visit>
  void settings(Visit&& visit) const {
    visit("matrix_scale", scale == MatrixScale::rms ? 1.0 : 0.0);
  }

  template <class Real>
  struct Rule {
    MatrixScale scale;
    template <class Element>
    TERSE_HD Real step(const Element&, Real, Real direction) const {
      return direction;
    }
    template <class Layer>
    TERSE_HD Real factor(const Layer& layer) const {
      if (!layer.hidden()) return 1;
      const Real rows = static_cast<Real>(layer.rows()), columns = static_cast<Real>(layer.columns());
      if (scale == MatrixScale::rms)
        return static_cast<Real>(0.2F) * std::sqrt(rows > columns ? rows : columns);
      return rows > columns ? std::sqrt(rows / columns) : Real{1};
    }
    /// Weight decay is not scaled.
    template <class Element>
    TERSE_HD Real move(const Element& e, Real u, Real rate) const {
      if (e.hidden()) return rate * u + e.rate() * (e.decay() * e.x());
      return rate * (u + e.decay() * e.x());
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {scale};
  }
};

/// Five applications of the polynomial 3.4445 s - 4.7750 s^3 + 2.0315 s^5. Its slope at 0 is as large as possible if singular
/// values needn't become exactly 1: those of at least 0.0016 end in [0.68, 1.21], and smaller ones grow 485-fold. Source: Jordan et
/// al., "Muon: an optimizer for hidden layers in neural networks", 2024.
struct NewtonSchulzSequence {
  static constexpr Quintic quintic{3.4445F, -4.7750F, 2.0315F};
  static constexpr std::array<Quintic, 5> steps{quintic, quintic, quintic, quintic, quintic};
  static constexpr float margin = 1;
};
/// Muon's orthogonalization: five applications of the polynomial 3.4445 s - 4.7750 s^3 + 2.0315 s^5 to the singular values s.
using NewtonSchulz = Orthogonal<NewtonSchulzSequence>;

/// Five polynomials, each optimal for the interval of singular values after the previous one: singular values of at least 0.001
/// end in [0.84, 1.15]. Source: Amsel, Persson, Musco and Gower, "The Polar Express: optimal matrix sign methods and their
/// application to the Muon algorithm", 2025 (arXiv 2505.16932), algorithm 1. These are the coefficients for five steps and a
/// safety factor of 2 %, with which the record runs of modded-nanogpt train.
struct PolarExpressSequence {
  static constexpr std::array<Quintic, 5> steps{
      {{8.156554524902461F, -22.48329292557795F, 15.878769915207462F},
       {4.042929935166739F, -2.808917465908714F, 0.5000178451051316F},
       {3.8916678022926607F, -2.772484153217685F, 0.5060648178503393F},
       {3.285753657755655F, -2.3681294933425376F, 0.46449024233003106F},
       {2.3465413258596377F, -1.7097828382687081F, 0.42323551169305323F}}};
  static constexpr float margin = 1.02F;
};
/// Orthogonalization by five different polynomials: PolarExpressSequence.
using PolarExpress = Orthogonal<PolarExpressSequence>;

TERSE_NUMERICS_END

}  // namespace terse

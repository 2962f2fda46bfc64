// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "terse/momentum_correction/concept.hpp"
#include "terse/preconditioner/concept.hpp"

// Runs a momentum correction and a preconditioner on one element of one rank, step by step, for the laws of rules.

namespace terse::laws {

TERSE_NUMERICS_BEGIN

namespace detail {

/// One element of one rank.
template <class Real>
struct Cell {
  Real x = static_cast<Real>(0.5), g = 0;
  std::vector<Real> buffers, layer, scalars;

  struct Element {
    Cell* cell;
    Real x() const { return cell->x; }
    Real g() const { return cell->g; }
    Real rate() const { return static_cast<Real>(0.01); }
    Real decay() const { return static_cast<Real>(0.1); }
    Real& operator[](int k) const { return cell->buffers.at(static_cast<std::size_t>(k)); }
    Real layer(int k) const { return cell->layer.at(static_cast<std::size_t>(k)); }
    Real scalar(int k) const { return cell->scalars.at(static_cast<std::size_t>(k)); }
    static bool hidden() { return false; }
  };
  Element element() { return {this}; }
};

/// A layer of one element, with the interface that a preconditioner expects.
template <class Real>
struct CellAsLayer {
  Cell<Real>* cell;
  std::vector<Real> statistics;

  Real measured(int k) const { return statistics.at(static_cast<std::size_t>(k)); }
  Real decay() const { return cell->element().decay(); }
  static index_t rows() { return 1; }
  static index_t columns() { return 1; }
  static bool hidden() { return false; }
  Real& operator[](int k) const { return cell->layer.at(static_cast<std::size_t>(k)); }
};

/// All layers, here one of one element, with the interface that a momentum correction expects.
template <class Real>
struct CellAsLayers {
  Cell<Real>* cell;

  static index_t count() { return 1; }
  static index_t elements(index_t) { return 1; }
  Real norm(index_t) const { return std::abs(cell->buffers.at(0)); }
  Real& operator()(index_t layer, int k) const {
    if (layer != 0) throw std::out_of_range("layer");
    return cell->layer.at(static_cast<std::size_t>(k));
  }
};

/// Results of a rank for a mean: the direction, and the step, which is the preconditioner's u or, if the preconditioner
/// is layer-wise, the decrease of x.
template <class Real>
struct Made {
  Real direction, step;
};

/// One element of one rank under both rules.
template <class Real, class M, class P>
class RuleTrial {
 public:
  RuleTrial(const M& momentum, const P& preconditioner)
      : momentum_(rule_of<Real>(momentum)), preconditioner_(rule_of<Real>(preconditioner)) {
    first_.buffers.resize(M::state.size());
    second_.buffers.resize(P::state.size());
    first_.layer.resize(terse::detail::layer_state_of<M>().size());
    second_.layer.resize(terse::detail::layer_state_of<P>().size());
  }

  void begin(std::uint64_t step, Real g) {
    if (step == second_stage) carry(static_cast<Real>(0.25));
    const auto fill_in = [&](const auto& rule, Cell<Real>& cell) {
      cell.g = g;
      if constexpr (requires { rule.at_step(step); }) {
        const auto scalars = rule.at_step(step);
        cell.scalars.assign(scalars.begin(), scalars.end());
      }
    };
    fill_in(momentum_, first_);
    fill_in(preconditioner_, second_);
  }
  Real message() {
    if constexpr (requires { momentum_.message(first_.element()); })
      return momentum_.message(first_.element());
    else
      return first_.g;
  }
  void sent(Real decoded) {
    if constexpr (requires { momentum_.sent(first_.element(), true, decoded); })
      momentum_.sent(first_.element(), true, decoded);
  }
  Made<Real> receive(Real mean, bool exact) {
    Made<Real> made{};
    const Real gradient = gradient_of(mean, exact);
    made.direction = direction(mean, exact);
    const auto e = second_.element();
    made.step = preconditioner_.step(e, gradient, made.direction);
    if constexpr (P::facts.layer_wise) {
      CellAsLayer<Real> layer{&second_, {}};
      if constexpr (!P::facts.orthogonalizes)
        for (int k = 0; k < PreconditionerRule::measures::count; ++k)
          layer.statistics.push_back(std::abs(preconditioner_.measured(k, e, made.step)));
      const Real factor = preconditioner_.factor(layer);
      if constexpr (requires { preconditioner_.observe(layer, factor); })
        preconditioner_.observe(layer, factor);
      if constexpr (requires { preconditioner_.move(e, factor, factor); })
        made.step = preconditioner_.move(e, made.step, e.rate() * factor);
      else
        made.step = e.rate() * factor * (made.step + e.decay() * e.x());
      if constexpr (requires { momentum_.stepped(first_.element(), true); })
        momentum_.stepped(first_.element(), made.direction > 0);  // some steps are taken
    }
    return made;
  }
  /// Applies a mean of 0, and returns true if it changes nothing.
  bool rests() {
    const RuleTrial before = *this;
    const Made<Real> made = receive(0, false);
    return made.direction == 0 && made.step == 0 && is_same(before);
  }
  bool is_finite() const {
    for (const auto* buffers : {&first_.buffers, &second_.buffers, &first_.layer, &second_.layer})
      for (const Real value : *buffers)
        if (!std::isfinite(value)) return false;
    return true;
  }
  bool is_same(const RuleTrial& other) const {
    return first_.buffers == other.first_.buffers && second_.buffers == other.second_.buffers &&
           first_.layer == other.first_.layer && second_.layer == other.second_.layer;
  }

 private:
  using PreconditionerRule = typename P::template Rule<Real>;
  static constexpr std::uint64_t second_stage = 5;  // its first step

  /// Acts as the end of a first stage whose preconditioner divided by `denominator`.
  void carry(Real denominator) {
    if constexpr (requires { preconditioner_.carry(second_.element(), denominator); })
      preconditioner_.carry(second_.element(), denominator);
    if constexpr (requires { momentum_.balance(CellAsLayers<Real>{&first_}); })
      momentum_.balance(CellAsLayers<Real>{&first_});
  }

  Real gradient_of(Real mean, bool exact) {
    if constexpr (requires { momentum_.mean_gradient(first_.element(), mean); })
      if (!exact) return momentum_.mean_gradient(first_.element(), mean);
    return mean;
  }
  Real direction(Real mean, bool exact) {
    if constexpr (requires { momentum_.exact_direction(first_.element(), mean); })
      if (exact) return momentum_.exact_direction(first_.element(), mean);
    return momentum_.direction(first_.element(), mean);
  }

  typename M::template Rule<Real> momentum_;
  PreconditionerRule preconditioner_;
  Cell<Real> first_, second_;
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse::laws

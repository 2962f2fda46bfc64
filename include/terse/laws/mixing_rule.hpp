// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/core/type_name.hpp"
#include "terse/laws/policy.hpp"
#include "terse/laws/report.hpp"
#include "terse/momentum_correction/mixing_rule.hpp"
#include "terse/optimizer/mixing_functors.hpp"

// Laws of mixing rules, the momentum corrections of ParameterMixing.
//
//     #include <terse/laws/mixing_rule.hpp>
//
//     const terse::laws::Report report = terse::laws::check_mixing_rule<MyRule>();
//     if (!report) std::puts(report.text().c_str());

namespace terse::laws {

TERSE_NUMERICS_BEGIN

namespace detail {

/// One element of one rank, with the interface that a mixing rule expects.
template <class Real>
struct MixingCell {
  Real held = 0, gradient = 0;
  std::vector<Real> buffers, scalars;

  struct Element {
    MixingCell* cell;
    Real held() const { return cell->held; }
    Real x() const { return cell->held - rate() * decay() * cell->held; }
    Real g() const { return cell->gradient; }
    Real rate() const { return static_cast<Real>(0.01); }
    Real decay() const { return static_cast<Real>(0.1); }
    Real ratio() const { return 1; }
    Real scalar(int k) const { return cell->scalars.at(static_cast<std::size_t>(k)); }
    Real& operator[](int k) const { return cell->buffers.at(static_cast<std::size_t>(k)); }
  };
  Element element() { return {this}; }
  bool operator==(const MixingCell&) const = default;
};

/// One element of three ranks that are all neighbours. The matrix has 1/2 on its diagonal and the eigenvalues 1 and
/// 1/4.
template <class Real, class M>
class MixingTrial {
 public:
  static constexpr std::size_t ranks = 3;

  explicit MixingTrial(const M& policy) : rule_(rule_of<Real>(policy)) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      cells[rank].held = static_cast<Real>(0.5) + static_cast<Real>(rank) / 4;
      cells[rank].buffers.resize(M::state.size());
    }
  }

  /// Runs step t. Without `mixes` ranks don't exchange anything.
  void step(std::uint64_t t, const std::array<float, ranks>& gradients, bool mixes) {
    prepare(t, gradients);
    std::array<std::array<Real, ranks>, 2> own{};
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      own[0][rank] = outgoing<0>(rank);
      if constexpr (M::facts.vectors == 2) own[1][rank] = outgoing<1>(rank);
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto difference = [&](int k) {
        const auto& z = own[static_cast<std::size_t>(k)];
        Real sum = 0;
        for (const Real other : z) sum += (other - z[rank]) / 4;
        return mixes ? sum : 0;
      };
      update(rank, own[0][rank], difference(0));
      if constexpr (M::facts.vectors == 2) update_second(rank, own[1][rank], difference(1));
      if constexpr (M::facts.combines_first) cells[rank].held = rule_.adapt(cells[rank].element());
    }
  }
  void prepare(std::uint64_t t, const std::array<float, ranks>& gradients) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      cells[rank].gradient = static_cast<Real>(gradients[rank]);
      if constexpr (requires { rule_.at_step(t); }) {
        const auto scalars = rule_.at_step(t);
        cells[rank].scalars.assign(scalars.begin(), scalars.end());
      }
    }
  }
  template <int K>
  Real outgoing(std::size_t rank) {
    return terse::detail::outgoing(rule_, cells[rank].element(), Vector<K>{});
  }
  void update(std::size_t rank, Real own, Real difference) {
    const auto e = cells[rank].element();
    if constexpr (M::facts.vectors == 2)
      cells[rank].held = rule_.update(Vector<0>{}, e, own, difference);
    else
      cells[rank].held = rule_.update(e, own, difference);
  }
  void update_second(std::size_t rank, Real own, Real difference) requires(M::facts.vectors == 2) {
    rule_.update(Vector<1>{}, cells[rank].element(), own, difference);
  }
  double mean() const {
    double sum = 0;
    for (const auto& cell : cells) sum += static_cast<double>(cell.held);
    return sum / ranks;
  }
  double spread() const {
    const auto [least, most] = std::minmax({cells[0].held, cells[1].held, cells[2].held});
    return static_cast<double>(most) - static_cast<double>(least);
  }

  std::array<MixingCell<Real>, ranks> cells;

 private:
  typename M::template Rule<Real> rule_;
};

template <class M>
class MixingLaws {
  static constexpr std::uint64_t steps = 60;
  static constexpr std::size_t ranks = MixingTrial<float, M>::ranks;

 public:
  MixingLaws(const M& policy, const Options& options) : policy_(policy), options_(options) {}

  std::string names() const { return names_fault(M::state); }
  std::string settings() const {
    // A rule with a direction has the hyper-parameters of the direction alone.
    if constexpr (requires { policy_.direction; })
      return settings_fault(policy_.direction);
    else
      return settings_fault(policy_);
  }

  /// Checks that `outgoing` changes nothing and returns the same value at every call.
  std::string pure() const {
    MixingTrial<double, M> trial(policy_);
    for (std::uint64_t t = 1; t <= steps; ++t) {
      trial.prepare(t, gradients(t));
      const auto before = trial.cells;
      const double first = trial.template outgoing<0>(0), again = trial.template outgoing<0>(0);
      if (!(trial.cells == before) || std::not_equal_to{}(first, again))
        return at(t) + "outgoing changes a buffer, or another value travels where it is asked again";
      if constexpr (M::facts.vectors == 2) {
        const double second = trial.template outgoing<1>(0), once_more = trial.template outgoing<1>(0);
        if (!(trial.cells == before) || std::not_equal_to{}(second, once_more))
          return at(t) +
                 "outgoing of the second vector changes a buffer, or another value travels where it is asked "
                 "again";
      }
      trial.step(t, gradients(t), true);
    }
    return "";
  }
  /// Checks the facts `before_gradient` and `second_by_difference`.
  std::string facts() const {
    MixingTrial<double, M> trial(policy_);
    for (std::uint64_t t = 1; t <= steps; ++t) {
      if constexpr (M::facts.before_gradient) {
        trial.prepare(t, gradients(t));
        const double here = trial.template outgoing<0>(0);
        trial.cells[0].gradient += 1;
        if (std::not_equal_to{}(here, trial.template outgoing<0>(0)))
          return at(t) + "outgoing reads the gradient, which contradicts facts.before_gradient";
      }
      if constexpr (M::facts.vectors == 2 && M::facts.second_by_difference) {
        MixingTrial<double, M> one = trial, other = trial;
        one.prepare(t, gradients(t));
        other.prepare(t, gradients(t));
        one.update_second(0, 1.0, 0.25);
        other.update_second(0, 2.0, 0.25);
        if (!(one.cells == other.cells))
          return at(t) + "the second update reads `own`, which contradicts facts.second_by_difference";
      }
      trial.step(t, gradients(t), true);
    }
    return "";
  }
  std::string precision() const {
    MixingTrial<float, M> trial(policy_);
    MixingTrial<double, M> oracle(policy_);
    double largest = 1;
    for (std::uint64_t t = 1; t <= steps; ++t) {
      trial.step(t, gradients(t), true);
      oracle.step(t, gradients(t), true);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const double wanted = oracle.cells[rank].held, found = static_cast<double>(trial.cells[rank].held);
        largest = std::max(largest, std::abs(wanted));
        if (!(std::abs(found - wanted) <= 1e-4 * largest))
          return at(t) + "x is " + std::to_string(found) + " in float and " + std::to_string(wanted) +
                 " in double";
      }
    }
    return "";
  }
  /// Checks that mixing does not change the ranks' mean: with the same gradients, it is the mean without mixing.
  std::string mean() const {
    MixingTrial<double, M> mixed(policy_), alone(policy_);
    for (std::uint64_t t = 1; t <= steps; ++t) {
      mixed.step(t, gradients(t), true);
      alone.step(t, gradients(t), false);
      if (!(std::abs(mixed.mean() - alone.mean()) <= 1e-9 * (1 + std::abs(alone.mean()))))
        return at(t) + "the ranks' mean is " + std::to_string(mixed.mean()) + ", and without mixing " +
               std::to_string(alone.mean());
    }
    return "";
  }
  /// Checks that ranks without gradients approach consensus.
  std::string consensus() const {
    MixingTrial<double, M> trial(policy_);
    const double first = trial.spread();
    for (std::uint64_t t = 1; t <= steps; ++t) {
      trial.step(t, {}, true);
      if (!(trial.spread() <= 4 * first))
        return at(t) + "without gradients ranks are " + std::to_string(trial.spread()) + " apart, and were " +
               std::to_string(first) + " at the beginning";
    }
    if (!(trial.spread() <= first / 2))
      return "after " + std::to_string(steps) + " steps without gradients ranks are " +
             std::to_string(trial.spread()) + " apart, and were " + std::to_string(first) +
             " at the beginning";
    return "";
  }

 private:
  static std::string at(std::uint64_t step) { return "step " + std::to_string(step) + ": "; }
  std::array<float, ranks> gradients(std::uint64_t step) const {
    std::array<float, ranks> all{};
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const Draw draw = Draw::local(options_.seed, static_cast<int>(rank), step, Purpose::user);
      all[rank] = options_.magnitude * (static_cast<float>(draw.bits(0) >> 40) * 0x1p-23F - 1);
    }
    return all;
  }

  M policy_;
  Options options_;
};

}  // namespace detail

TERSE_NUMERICS_END

/// Checks the laws of mixing rules with one element of three ranks that are all neighbours:
///
///     names         buffers have unique names
///     settings      hyper-parameters are visited
///     bounds        the rule accesses only buffers and scalars that the policy has named
///     pure          outgoing changes nothing and returns the same value at every call
///     facts         `before_gradient` and `second_by_difference` are as stated
///     precision     60 steps in float equal those in double, up to 1e-4
///     mean          mixing doesn't change the ranks' mean, given the gradients
///     consensus     60 steps without gradients at least halve the distance between ranks; not for rules with
///                   `moves_by_packet`, whose ranks must start equal
///
/// The last two use a doubly stochastic matrix, with 1/2 on its diagonal, and a constant learning rate.
template <class M>
Report check_mixing_rule(const M& policy = {}, const Options& options = {}) {
  static_assert(terse::check_mixing_rule<M>());
  const detail::MixingLaws<M> laws(policy, options);
  Report report{.compressor = type_name<M>(), .passed = {}, .not_applicable = {}, .failures = {}};
  detail::Judge judge(report);
  judge("names", [&] { return laws.names(); });
  judge("settings", [&] { return laws.settings(); });
  judge("pure", [&] { return laws.pure(); });
  judge("facts", [&] { return laws.facts(); });
  judge("precision", [&] { return laws.precision(); });
  judge("mean", [&] { return laws.mean(); });
  if (M::facts.moves_by_packet)
    report.not_applicable.emplace_back("consensus");
  else
    judge("consensus", [&] { return laws.consensus(); });
  judge.bounds();
  return report;
}

}  // namespace terse::laws

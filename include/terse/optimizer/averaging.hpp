// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/sorted.hpp"
#include "terse/optimizer/two_stages.hpp"
#include "terse/topology/ring.hpp"

namespace terse {

namespace detail {

template <class C>
constexpr bool reads_zero_as_zero() {
  if constexpr (requires { C::Quantizer::represents_zero; })
    return C::Quantizer::represents_zero;
  else
    return C::lossless || Traits<C>::contractive;
}

}  // namespace detail

namespace recipes {

/// Methods that average over all ranks, composed of five policies:
///
///     message_i   by the momentum correction, from this rank's gradient
///     mean        of the messages, by compressor, error feedback and topology
///     d           the direction, by the momentum correction, from the mean
///     u           the step, by the preconditioner, from mean and d
///     x = x - learning_rate (u + weight_decay x)
///
/// Gradients are averaged exactly in three cases: in the first `warmup_steps` steps, in segments with `compress == false`, and
/// in the first step if the error feedback starts from an exact one (Ef21). Weight decay is decoupled.
///
/// State: the buffers of momentum correction and preconditioner, n floats each, and those of the error feedback. A layer-wise
/// preconditioner has n floats more. Passes over n: those of the compressor, and one for the update. `warmup_steps` may not
/// change from 0, and the hyper-parameters of topology and error feedback are fixed at construction. All others may be changed
/// between steps.
template <class M, class P, class C, class F, class T>
struct AveragingOf {
  static_assert(check_momentum_correction<M>() && check_preconditioner<P>() &&
                detail::check_means<C, F, T>() && detail::check_own_errors<C, F>());
  static_assert(
      !M::facts.needs_whole_messages || !detail::compresses_partial_sums<T>(),
      "terse: this momentum correction (MajorityVote, for one) counts whole messages, and this topology "
      "(Ring) compresses partial sums on the way. Use ScatterGather or AllGather");
  static_assert(
      !M::facts.needs_zero || detail::reads_zero_as_zero<C>(),
      "terse: in this momentum correction a tie of votes is 0, and this compressor (UnitSign, for one) "
      "has no 0. Use UnitTernary, or Tie::plus");
  static_assert(!M::facts.needs_exact_mean || C::lossless || !T::recompresses,
                "terse: this momentum correction steps along the mean of the ranks' signs, and this topology "
                "compresses that again. Use AllGather, or vote");
  static_assert(!C::lossless || !detail::is_no_mean<T>(),
                "terse: Gathered merges packets, and uncompressed segments have none: BySize averages them. "
                "Give this optimizer a compressor, or make it the inner one of a local method");
  using Stage = detail::Stage<M, P>;
  using compressor_type = C;
  using error_feedback_type = F;
  using topology_type = T;

  float learning_rate = 0.1F;      ///< step size; may change between steps
  float weight_decay = 0;          ///< coefficient, decoupled from the gradient
  std::uint64_t warmup_steps = 0;  ///< number of first steps in full precision
  M momentum_correction{};         ///< rule for the message and the direction
  P preconditioner{};              ///< rule that scales the direction
  C compressor{};                  ///< compressor of the messages
  F error_feedback{};              ///< handling of the compression error
  T topology{};                    ///< communication pattern between ranks

  Stage stage() const { return {learning_rate, weight_decay, momentum_correction, preconditioner}; }
  detail::TwoStages<Stage, Stage, C, F, T, detail::WarmUp> composition() const {
    return {stage(), stage(), compressor, error_feedback, topology, {{warmup_steps}}};
  }
};

}  // namespace recipes

/// Returns the Averaging as which a named optimizer runs: with its rates, warmup_steps, compressor, error_feedback and
/// topology, and with these two policies.
template <class Named, class M, class P>
auto averaging_of(const Named& named, const M& momentum_correction, const P& preconditioner) {
  return recipes::AveragingOf<M, P, decltype(named.compressor), decltype(named.error_feedback),
                              decltype(named.topology)>{
      named.learning_rate, named.weight_decay, named.warmup_steps,   momentum_correction,
      preconditioner,      named.compressor,   named.error_feedback, named.topology};
}

/// An Averaging with these policies, in any order. Policies that are not given are taken from Defaults: `template
/// <class... Ps> using MyMethod = AveragingFrom<Policies<TopK<>, HeavyBall>, Ps...>;`.
template <class Defaults, class... Ps>
using AveragingFrom = Sorted<recipes::AveragingOf,
                             Takes<PolicyKind::momentum_correction, PolicyKind::preconditioner,
                                   PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::topology>,
                             Defaults, Ps...>;

/// An optimizer of a momentum correction, a preconditioner, a compressor, an error feedback and a topology, in any order. For the
/// defaults see Sorted.
///
///     Averaging<ExponentialAverage, AdamVariance, TopK<>, AllGather>{.learning_rate = 1e-3F}       Adam on top-k
template <class... Ps>
using Averaging = AveragingFrom<Policies<>, Ps...>;

}  // namespace terse

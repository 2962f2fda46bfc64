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

/// Methods that average over all ranks, as a product of five policies:
///
///     message_i   by the momentum correction, from this rank's gradient
///     mean        of the messages, by compressor, error feedback and topology
///     d           by the momentum correction, from the mean
///     u           by the preconditioner, from mean and d
///     x = x - learning_rate (u + weight_decay x)
///
/// The first `warmup_steps` steps average gradients exactly, as do segments with `compress == false`, and as does the first
/// step where the error feedback starts from an exact one (Difference). Weight decay is decoupled.
///
/// State: the buffers that momentum correction and preconditioner name, n floats each, and the feedback's; n floats more
/// where the preconditioner is layer-wise. Passes over n: see the compressor, and one for the update. `warmup_steps` from
/// 0, the topology's parameters and the error feedback's hyper-parameters hold from construction on; the others may be changed between steps.
template <class M, class P, class C, class F, class T>
struct AveragingOf {
  static_assert(check_momentum_correction<M>() && check_preconditioner<P>() && check_means<C, F, T>() &&
                check_own_errors<C, F>());
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
  static_assert(
      !C::lossless || !detail::is_no_mean<T>(),
      "terse: Gathered merges packets, and what is not compressed is averaged by BySize, without any. Give "
      "this optimizer a compressor, or make it the inner one of a local method");
  using Stage = detail::Stage<M, P>;
  using compressor_type = C;
  using error_feedback_type = F;
  using topology_type = T;

  float learning_rate = 0.1F;      ///< factor of the step; may change from step to step
  float weight_decay = 0;          ///< decoupled from the gradient
  std::uint64_t warmup_steps = 0;  ///< the first steps, in full precision
  M momentum_correction{};         ///< what is sent, and the direction
  P preconditioner{};              ///< what scales the direction
  C compressor{};                  ///< of messages
  F error_feedback{};              ///< what becomes of what compression loses
  T topology{};                    ///< the way messages take between ranks

  Stage stage() const { return {learning_rate, weight_decay, momentum_correction, preconditioner}; }
  detail::TwoStages<Stage, Stage, C, F, T, detail::WarmUp> composition() const {
    return {stage(), stage(), compressor, error_feedback, topology, {{warmup_steps}}};
  }
};

/// What a named optimizer, with hyper-parameters of its own, runs as: an Averaging with its rates, warmup_steps, compressor,
/// error_feedback and topology, and with these two.
template <class Named, class M, class P>
auto averaging_of(const Named& named, const M& momentum_correction, const P& preconditioner) {
  return AveragingOf<M, P, decltype(named.compressor), decltype(named.error_feedback),
                     decltype(named.topology)>{named.learning_rate,  named.weight_decay, named.warmup_steps,
                                               momentum_correction,  preconditioner,     named.compressor,
                                               named.error_feedback, named.topology};
}

/// An Averaging with these policies, in any order, and for those that are not given with the Defaults:
/// `template <class... Ps> using MyMethod = AveragingFrom<Policies<TopK<>, HeavyBall>, Ps...>;`.
template <class Defaults, class... Ps>
using AveragingFrom = Sorted<AveragingOf,
                             Takes<PolicyKind::momentum_correction, PolicyKind::preconditioner,
                                   PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::topology>,
                             Defaults, Ps...>;

/// A momentum correction, a preconditioner, a compressor, an error feedback and a topology, in any order; for what is left
/// out see Sorted.
///
///     Averaging<ExponentialAverage, AdamVariance, TopK<>, AllGather>{.learning_rate = 1e-3F}       Adam on top-k
template <class... Ps>
using Averaging = AveragingFrom<Policies<>, Ps...>;

}  // namespace terse

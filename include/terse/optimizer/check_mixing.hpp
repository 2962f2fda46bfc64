// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "terse/error_feedback/concept.hpp"
#include "terse/graph/spectrum.hpp"
#include "terse/graph/stochastic.hpp"
#include "terse/momentum_correction/mixing_rule.hpp"

// Checks that a method of decentralized SGD converges on a graph. Properties of types are checked at compile time, and
// properties of the matrix when an optimizer is constructed.

namespace terse::detail {

/// Checks that method M converges on the graph of topology P, with packets compressed by C with feedback F. Otherwise it reports
/// the reason by static_assert; graph::Unchecked overrides this.
template <class M, class P, class C, class F>
constexpr bool check_mixing() {
  using G = typename P::Graph;
  constexpr bool any = graph::Traits<G>::unchecked;
  static_assert(
      any || G::doubly_stochastic || graph::Traits<G>::push_sum,
      "terse: on this graph mixing does not keep the mean of the ranks, because its matrix need not be "
      "doubly stochastic. Put other weights on it (MetropolisHastings), or run stochastic gradient "
      "push on PushSum<...>");
  static_assert(
      any || !graph::Traits<G>::push_sum || M::facts.allows_push_sum,
      "terse: push-sum weights are for StochasticGradientPush (AdaptThenCombine); this method needs a "
      "doubly stochastic graph");
  static_assert(any || !M::facts.needs_fixed_symmetric || (G::fixed && G::symmetric),
                "terse: momentum on the mixture (DecentLaM, momentum consensus) and exact diffusion (D2) "
                "need a graph that is fixed and symmetric: on directed graphs, or those that change from "
                "step to step, they diverge at any learning rate, by up to 25 % a step. Use Gossip, or "
                "QuasiGlobal momentum (QgDmSgd) or GradientTracking on this graph");
  static_assert(
      any || !M::facts.needs_spectrum || graph::Traits<G>::spectrum_above_minus_third ||
          graph::Traits<G>::known_at_construction,
      "terse: exact diffusion (D2) diverges where the mixing matrix has an eigenvalue of -1/3 or less, "
      "which this graph has at some sizes (an even ring, a 2 x 4 mesh). Use graph::Lazy<...>, which is "
      "(I + W) / 2");
  static_assert(
      any || G::fixed || !(M::facts.needs_fixed || Traits<F>::single_stage),
      "terse: this method keeps sums over its neighbours from step to step, so that the graph must be "
      "fixed");
  static_assert(C::lossless || !graph::Traits<G>::push_sum,
                "terse: push-sum weights and compressed packets are not covered by any method here");
  return true;
}

/// Checks that C compresses whole models, before a feedback is chosen for it.
template <class C>
constexpr bool check_whole_models() {
  constexpr bool by_layer = requires { typename C::is_select; };
  static_assert(!by_layer,
                "terse: Select is for means over all ranks, by an exact topology (ScatterGather, Ring, Star, "
                "AllGather, Hierarchical); graphs mix whole models by one compressor");
  return !by_layer;
}

/// Throws usage_error if method M on the graph of topology P can't be combined with periodic exact means.
template <class M, class P>
void check_average(std::uint64_t average_every, int rank) {
  using Traits = graph::Traits<typename P::Graph>;
  if (average_every == 0 || Traits::unchecked) return;
  if constexpr (Traits::push_sum)
    throw usage_error("average_every takes the plain mean, which push-sum weights are not for", rank);
  if constexpr (M::facts.needs_fixed)
    throw usage_error(
        "exact means now and then (average_every) pass by the sums over neighbours that this method keeps",
        rank);
  // Their memory of the differences between ranks survives the mean, and grows from one mean to the next.
  if constexpr (M::facts.needs_fixed_symmetric)
    throw usage_error(
        "exact means now and then (average_every) make the graph change from step to step, and there this "
        "method "
        "diverges. Use DmSgd, QgDmSgd or GradientTracking",
        rank);
}

/// Throws usage_error if a rule has a lower limit for the eigenvalues of a symmetric, fixed matrix, and one does not exceed
/// it.
template <class M, class P>
void check_spectrum(const M& rule, const P& topology, int size, int rank) {
  using G = typename P::Graph;
  if constexpr (G::fixed && G::symmetric && !graph::Traits<G>::unchecked &&
                requires { rule.eigenvalues_above(); }) {
    const double limit = rule.eigenvalues_above();
    if (graph::Traits<G>::lazy || limit <= -1) return;
    const double least =
        graph::smallest_eigenvalue(graph::matrix_of(topology.graph, topology.nodes(size), 0));
    if (least <= limit + graph::stochastic_tolerance)
      throw usage_error("this method diverges on a graph whose matrix has the eigenvalue " +
                            std::to_string(least) + "; with these hyper-parameters all must be above " +
                            std::to_string(limit) + ". Use graph::Lazy<...>, which is (I + W) / 2",
                        rank);
  }
}

}  // namespace terse::detail

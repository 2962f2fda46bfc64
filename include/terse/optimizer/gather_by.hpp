// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/dense.hpp"
#include "terse/core/policy.hpp"
#include "terse/error_feedback/owners_residual.hpp"
#include "terse/topology/round_concept.hpp"

namespace terse {

/// The way of parameters from their owners to all ranks, a policy of Sharded. Dense sends the owners' parameters as they are. With
/// another compressor C an owner keeps its parameters in fp32 as masters, and sends C(master - x) for the copies x that all ranks
/// hold:
///
///     x = x + C(master - x)        equally on all ranks
///
/// The part that C loses stays in the difference and is sent in later steps. To models in 16 bits owners send the parameters
/// themselves, by Dense or by the Cast to the model's own format, which gives equal bits at half the bytes.
///
/// State: n / W floats of masters, unless C is lossless and the model is in fp32.
template <Compressor C = Dense>
struct GatherBy {
  static_assert(check_compressor<C>());
  static_assert(
      detail::takes_any_round<C> && !Traits<C>::keyed && !Traits<C>::whole_segments,
      "terse: owners send parts of segments, and this compressor (LowRank, Select, Dct, Lattice) needs "
      "whole ones or its own round. Use Dense, a Cast, a quantizer or TopK");
  static_assert(
      C::lossless || Traits<C>::tracks || Traits<C>::unchecked,
      "terse: owners send again what was lost of their parameters, so the compressor must track: the "
      "error of this one would grow. Use Dense, Cast<bf16>, Uniform<8, Nearest> or TopK");
  static constexpr bool gathers = true;
  using compressor_type = C;

  C compressor{};  ///< the compressor of parameters

  void check() const { detail::check_policy(compressor); }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(compressor, visit);
  }
};

}  // namespace terse

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "terse/compressor/dense.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/topology/scatter_gather.hpp"

namespace terse {

/// The inner level of a Hierarchical whose messages are also compressed within nodes, as in ScatterGather:
///
///     packets of C to the owners of a node's shares, which decode them and take their mean; the exchange between nodes;
///     packets of Back with the mean to all ranks of the node
///
/// F is the error feedback of a rank's own messages under C: by default Residual, or NoErrorFeedback if C doesn't track. Back
/// has no error feedback, since all nodes must read equal packets regardless of their history: it is lossless or unbiased.
/// Segments that are not compressed are sent in full precision.
///
/// State: F's state for n elements. Sends per rank, if a node has L ranks: (L - 1) / L of a packet of C and of one of Back. Source:
/// Wang et al., "ZeRO++", 2023, section 3.3 (quantized all-to-all within nodes and between them); Jia et al., "SDP4Bit", NeurIPS
/// 2024 (8 bits within, 4 between).
///
///     Adam<Uniform<4>, Hierarchical<Within<Uniform<8>>, ScatterGather>>{.topology = {.ranks_per_node = 8}}
template <Compressor C, ErrorFeedback F = std::conditional_t<Traits<C>::tracks, Residual, NoErrorFeedback>,
          Compressor Back = Dense>
struct Within {
  static_assert(check_compressor<C>() && detail::check_feedback<C, F>() &&
                detail::check_stages<C, F, ScatterGather>());
  static_assert(!C::lossless,
                "terse: Within<Dense> compresses nothing: Hierarchical<ScatterGather, ...> does that");
  static_assert(detail::takes_any_round<C> && !Traits<C>::keyed && !Traits<C>::whole_segments &&
                    detail::takes_any_round<Back> && !Traits<Back>::keyed && !Traits<Back>::whole_segments,
                "terse: within nodes packets contain parts of segments, and this compressor (LowRank, "
                "Select, Dct, Lattice) needs whole ones or its own round. Use a quantizer, or TopK");
  static_assert(Back::lossless || Back::unbiased || Traits<Back>::unchecked,
                "terse: the way from the mean back to a node's ranks has no error feedback, so its "
                "compressor must be lossless or unbiased: Dense, Uniform<8, Stochastic, Symmetric>, Qsgd");
  static constexpr bool exact = true;
  static constexpr bool recompresses = true;

  C compressor{};      ///< the compressor of messages between ranks of a node
  F error_feedback{};  ///< handling of its compression error
  Back back{};         ///< the compressor of the mean, when it is sent back

  void check() const {
    detail::check_policy(compressor);
    detail::check_policy(error_feedback);
    detail::check_policy(back);
  }
  const char* unrecordable(const RecordUse& use) const {
    return detail::unrecordable(use, compressor, error_feedback, back);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(compressor, visit);
    detail::policy_settings(error_feedback, visit);
    detail::policy_settings(back, visit);
  }
};

}  // namespace terse

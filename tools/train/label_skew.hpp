// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "terse/core/draw.hpp"

namespace train {

/// Deals a training set out to ranks that see labels in mixtures of their own, each drawn from the Dirichlet
/// distribution with parameters alpha q_c, where q_c is how often label c is in the set, 1 on average over the 10
/// labels: at alpha = 0.1 a rank sees mostly one or two labels, at 1000 all see what the whole set has. Returns
/// labels.size() / ranks pictures for each rank, one rank's after the other's; none is in it twice.
///
/// The ranks are served one after the other. One that has n_c pictures of label c so far gets its next of label
///
///     c  with probability proportional to  alpha q_c + n_c,  among the labels of which pictures are left
///
/// which is Polya's urn: its shares tend to a draw from that distribution, so that nobody needs gamma variates. alpha
/// q_c is rounded to 2^-32 and the rest is whole numbers: all machines deal alike. The first rank's mixture is exact;
/// those of the later ones are over the labels that are left, and so a little less skewed on average. alpha is in [1e-6,
/// 1e6], labels are in [0, 9].
/// Source: Blackwell and MacQueen, "Ferguson distributions via Polya urn schemes", Ann. Stat. 1 (1973); mixtures for
/// each rank, without replacement, as in Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution
/// for federated visual classification", 2019, section 3.
inline std::vector<std::int64_t> deal_skewed(const std::vector<std::int64_t>& labels, int ranks, double alpha,
                                             std::uint64_t seed) {
  constexpr std::size_t kinds = 10;
  constexpr double one = 0x1p32;
  std::array<std::vector<std::int64_t>, kinds> left;  // the next one last
  for (std::size_t i = labels.size(); i-- > 0;)
    left[static_cast<std::size_t>(labels[i])].push_back(static_cast<std::int64_t>(i));

  std::array<std::uint64_t, kinds> prior;
  for (std::size_t c = 0; c < kinds; ++c)
    prior[c] = static_cast<std::uint64_t>(
        std::max(1LL, std::llround(alpha * one * static_cast<double>(kinds * left[c].size()) /
                                   static_cast<double>(labels.size()))));

  const std::size_t share = labels.size() / static_cast<std::size_t>(ranks);
  std::vector<std::int64_t> pictures(share * static_cast<std::size_t>(ranks));
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
    const terse::Draw draw = terse::Draw::shared(seed, rank, terse::Purpose::user);
    std::array<std::uint64_t, kinds> urn = prior;
    for (std::size_t k = 0; k < share; ++k) {
      std::uint64_t all = 0;
      for (std::size_t c = 0; c < kinds; ++c) all += left[c].empty() ? 0 : urn[c];
      std::uint64_t ball = draw.below(all, k);
      std::size_t label = 0;
      for (;; ++label) {
        if (left[label].empty()) continue;
        if (ball < urn[label]) break;
        ball -= urn[label];
      }
      pictures[rank * share + k] = left[label].back();
      left[label].pop_back();
      urn[label] += static_cast<std::uint64_t>(one);
    }
  }
  return pictures;
}

}  // namespace train

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "terse/topology/decoded_packet.hpp"
#include "terse/topology/gathered.hpp"
#include "terse/transport/assembly.hpp"

namespace terse {

/// The mean of packets after each is scaled down to at most the median of their Euclidean norms. This bounds the influence
/// of each rank, even if its message is huge:
///
///     y = 1 / W sum_i min(1, m / ||y_i||) y_i        m: the median of the norms that aren't 0, of two middle ones the lower
///
/// With weights it is sum_i w_i min(..) y_i / sum_i w_i, and the median still counts all packets equally. The norm is computed from
/// the decoded packet; a sender can't claim another one. If all norms are equal, it has the bits of the plain mean. It bounds
/// magnitudes, not directions: of the packets that aren't 0, less than half may be from ranks that can't be trusted. A packet whose
/// square is beyond the range of floats (a norm of about 2^64) counts as 0; values that aren't finite are a wire_error, as in all
/// topologies.
///
/// Sends as many bytes as AllGather. Cost: each packet is decoded twice, and one pass over it for its norm; n floats. On a device the
/// step waits for the norms, and can't be recorded.
///
/// Source: Sarfi, Therien, Lidin and Belilovsky, "Communication efficient LLM pre-training with SparseLoCo", arXiv 2508.15706,
/// 2025, the authors' training code (templar), which clips each tensor of a packet to its own median.
struct MedianClip {
  static constexpr bool merges = true;
  static constexpr bool waits = true;

  template <Compressor C, ErrorFeedback F, Executor E>
  class State {
    using Context = RoundContext<C, F, E>;

   public:
    TERSE_COLD State(const Context& context, const MedianClip&)
        : decoded_(context.executor, context.plan.whole),
          squares_(2 * context.size),
          beyond_(context.size),
          norms_(static_cast<std::size_t>(context.size)),
          sorted_(norms_.size()),
          found_(2 * norms_.size()),
          found_beyond_(norms_.size()) {}

    template <class Round, class Consumer>
    void consume(Context& context, Round& round, const std::vector<float>& weights,
                 const Consumer& consumer) {
      measure(context, round);
      sorted_ = norms_;
      std::sort(sorted_.begin(), sorted_.end());
      const auto some = std::upper_bound(sorted_.begin(), sorted_.end(), 0.0);
      const double median = some == sorted_.end() ? 0 : some[(sorted_.end() - some - 1) / 2];
      const float sum = std::accumulate(weights.begin(), weights.end(), 0.0F);
      const auto weight = [&](int peer) {
        const auto k = static_cast<std::size_t>(peer);
        return norms_[k] > 0 ? weights[k] * static_cast<float>(std::min(1.0, median / norms_[k])) : 0.0F;
      };
      deliver(context, context.plan.whole, round.packets(context, 0, context.size, weight), 1 / sum,
              consumer);
    }

   private:
    template <class Round>
    void measure(Context& context, Round& round) {
      const Portion& whole = context.plan.whole;
      fill(context.executor, squares_.all(), 0.0F);
      fill(context.executor, beyond_.all(), 0U);
      for (int peer = 0; peer < context.size; ++peer) {
        decoded_.load(context, round.packets(context, peer, peer + 1, [](int) { return 1.0F; }));
        const auto square = [&](const Range& range, int part) {
          decoded_.template measure<SumOfSquares>(context.executor, range, Units{0, true}, decoded_.values(),
                                                  squares_.all().part(2 * peer + part, 1),
                                                  beyond_.data() + peer);
        };
        square(whole.compressed, 0);
        square(whole.dense, 1);
      }
      detail::await_messages(context.channel);
      fetch(context.executor, in<E>(squares_.all()), view<float>(found_));
      fetch(context.executor, in<E, std::uint32_t>(beyond_.all()), view<std::uint32_t>(found_beyond_));
      for (std::size_t k = 0; k < norms_.size(); ++k)
        norms_[k] =
            found_beyond_[k] != 0
                ? 0
                : std::sqrt(static_cast<double>(found_[2 * k]) + static_cast<double>(found_[2 * k + 1]));
    }

    detail::DecodedPacket<C, E> decoded_;
    buffer<float, typename E::memory> squares_;  // of each packet's compressed and dense part
    buffer<std::uint32_t, typename E::memory> beyond_;
    std::vector<double> norms_, sorted_;  // by rank
    std::vector<float> found_;            // on the host
    std::vector<std::uint32_t> found_beyond_;
  };
};

}  // namespace terse

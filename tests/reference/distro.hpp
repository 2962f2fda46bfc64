// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

#include "demo.hpp"

// An oracle in double of DisTrO, in the order and the variables of Psyche's code.

namespace terse::reference {

/// All ranks in one thread. In each step, x as the last message but one has left it and gamma' the last step's rate,
///
///     g = gradient at x - gamma' sign(e), of an x that has decayed in all steps so far
///     e = e - inverse(q);   e = beta e + gamma g;   q = the top k of each block's waves of e;   x decays, x = x - gamma lambda x
///     x = x - gamma sign(inverse of the mean of sign(q), over the ranks that have sent a wave), in the next step
///
/// What decays in a step is taken from the x that the step's own message finds, and so has the size that it has in DeMo. Segments that are not compressed: q = e, and the mean is e's own. `values`: q itself travels, and its mean is over all ranks.
struct DisTrO {
  using Gradient = std::function<Doubles(std::size_t rank, const Doubles& x)>;

  Layout layout;
  index_t side;
  double share, beta, lambda;
  bool values = false;
  Doubles x;                  ///< as of the last message
  std::vector<Doubles> e, q;  ///< [rank], q after its inverse transform
  std::vector<Doubles> at;    ///< [rank] where gradients are computed next
  bool doubted = false;       ///< whether a pick hung on a rounding
  std::vector<bool> mean_doubted;
  std::vector<std::vector<bool>> ahead_doubted;  ///< [rank] elements whose sign hung on one

  DisTrO(const Layout& layout_, std::size_t ranks, const Doubles& start)
      : layout(layout_),
        x(start),
        e(ranks, Doubles(start.size())),
        q(e),
        at(ranks, start),
        ahead_doubted(ranks) {}

  void step(const Gradient& gradient, double gamma) {
    doubted = false;
    mean_doubted.assign(x.size(), false);
    const Doubles model = x;
    std::vector<Doubles> g;
    for (std::size_t rank = 0; rank < e.size(); ++rank) {
      g.push_back(gradient(rank, at[rank]));
      ahead_doubted[rank].assign(x.size(), false);
    }
    for (const Segment& segment : layout.segments()) {
      const double rate = gamma * static_cast<double>(segment.learning_rate_scale);
      const double decay = lambda * static_cast<double>(segment.weight_decay);
      for (const Block& block : blocks_of(segment, side)) {
        const std::size_t n = block.places.size();
        Doubles sum(n), senders(n);
        for (std::size_t rank = 0; rank < e.size(); ++rank) {
          Doubles now;
          for (const std::size_t i : block.places) {
            e[rank][i] = beta * (e[rank][i] - q[rank][i]) + rate * g[rank][i];
            now.push_back(e[rank][i]);
          }
          const Doubles sent =
              segment.compress ? largest(transformed(block.rows, block.columns, now), share, doubted) : now;
          const Doubles back = segment.compress ? restored(block.rows, block.columns, sent) : now;
          for (std::size_t k = 0; k < n; ++k) {
            const std::size_t i = block.places[k];
            q[rank][i] = back[k];
            sum[k] += segment.compress && !values ? sign_of(sent[k]) : sent[k];
            senders[k] += sent[k] != 0 ? 1 : 0;
            at[rank][i] = model[i] - rate * (sign_of(now[k]) + decay * model[i]);
            ahead_doubted[rank][i] = now[k] != 0 && std::abs(now[k]) < 1e-5 * rate;
          }
        }
        if (segment.compress && !values)
          for (std::size_t k = 0; k < n; ++k) sum[k] /= senders[k] > 0 ? senders[k] : 1;
        const Doubles mean = segment.compress ? restored(block.rows, block.columns, sum) : sum;
        for (std::size_t k = 0; k < n; ++k) {
          const std::size_t i = block.places[k];
          x[i] = model[i] - rate * (sign_of(mean[k]) + decay * model[i]);
          mean_doubted[i] = std::abs(mean[k]) < 1e-5 * (segment.compress && !values ? 1 : rate);
        }
      }
    }
  }
};

}  // namespace terse::reference

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace terse::reference {

/// How momentum m, in units of the gradient, takes rates that jump up. A turn at a constant rate keeps `keeps` of it. The velocity
/// gamma m must not grow of itself, except as fast as a linear warm-up does from 0 or from its first rate. With 0 m is the paper's.
struct Jumps {
  double keeps = 0;
  double last = 0;
  std::uint64_t turn = 0;

  /// What m is multiplied by before a turn at rate gamma.
  double factor(double gamma) {
    ++turn;
    const double ratio = last > 0 ? gamma / last : 0;
    last = gamma;
    const auto t = static_cast<double>(turn);
    const double warm_up = turn > 2 ? (t - 1) / (t - 2) : 3;
    const double most = keeps > 0 ? std::max(warm_up, 1 / keeps) : ratio;
    return ratio > most ? most / ratio : 1;
  }
};

}  // namespace terse::reference

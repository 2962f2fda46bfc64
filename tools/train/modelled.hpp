// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <optional>

namespace train {

/// A rank whose gradients take `factor` times as long: it sleeps after each.
struct Straggler {
  int rank = 0;
  double factor = 1;
};

/// What a run is made to look like beyond what its machine is. Seconds are modelled where there is any of it.
struct Modelled {
  std::optional<double> delay;      ///< ms that each message takes, see terse::Delayed
  std::optional<double> bandwidth;  ///< Mbit/s of each rank's link, each way
  std::optional<Straggler> straggler;

  bool link() const { return delay || bandwidth; }
  bool any() const { return link() || straggler; }
  double bytes_per_second() const {
    return bandwidth ? *bandwidth * 1e6 / 8 : std::numeric_limits<double>::infinity();
  }
};

}  // namespace train

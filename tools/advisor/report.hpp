// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "figures.hpp"

namespace advise {

struct Row {
  std::string name, dense;
  Figures figures;
};

/// All that is known when the last method has been rehearsed.
struct Advice {
  int ranks = 1;
  terse::index_t elements = 0;
  std::size_t segments = 0;
  double gradient = 0;
  bool measured = false;
  terse::predict::Network network{};
  terse::predict::Node node{};
  std::vector<Row> rows{};

  /// As it is and, where it overlaps, overlapped.
  void add(const Method& method, const Figures& figures);
  double seconds(const Row& row) const;
};

/// A table, and what to take of it.
std::string report(const Advice& advice);
std::string json(const Advice& advice);

}  // namespace advise

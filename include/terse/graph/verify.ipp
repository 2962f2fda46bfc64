// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/separate.hpp"
#include "terse/graph/verify.hpp"

namespace terse::graph::detail {

TERSE_CORE void verify_row(const std::vector<Edge>& edges, int rank, int size, std::uint64_t round) {
  int last = -1;
  double sum = 0;
  for (const Edge& edge : edges) {
    if (edge.peer <= last || edge.peer >= size || edge.peer == rank)
      throw usage_error(place(rank, round) + "'s row is not of other ranks in ascending order: rank " +
                        std::to_string(edge.peer) + " comes after " + std::to_string(last));
    if (!(edge.weight > 0))
      throw usage_error(place(rank, round) + " weighs rank " + std::to_string(edge.peer) + " by " +
                        digits(edge.weight) + ", which is not above 0");
    last = edge.peer;
    sum += edge.weight;
  }
  if (!(sum <= 1 + stochastic_tolerance))
    throw usage_error(place(rank, round) + " weighs its peers by " + digits(sum) +
                      " in all, which is above 1");
}

TERSE_CORE void verify_receivers(const std::vector<int>& receivers, int rank, int size, std::uint64_t round,
                                 const std::vector<double>& matrix) {
  const auto n = static_cast<std::size_t>(size), column = static_cast<std::size_t>(rank);
  std::vector<int> expected;
  for (std::size_t i = 0; i < n; ++i)
    if (i != column && matrix[i * n + column] > 0) expected.push_back(static_cast<int>(i));
  if (receivers == expected) return;
  std::string text;
  for (const int peer : expected) text += " " + std::to_string(peer);
  throw usage_error(place(rank, round) + " is in the rows of" + (text.empty() ? " nobody" : text) +
                    ", which contradicts receivers()");
}

TERSE_CORE void verify_flag(bool holds, const char* flag, std::uint64_t round) {
  if (!holds)
    throw usage_error(std::string("the graph is declared ") + flag + ", but in round " +
                      std::to_string(round) + " it is not");
}

}  // namespace terse::graph::detail

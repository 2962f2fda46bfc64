// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/type_name.hpp"
#include "terse/graph/concept.hpp"
#include "terse/graph/spectrum.hpp"
#include "terse/graph/stochastic.hpp"
#include "terse/laws/report.hpp"

// Checks the contract of a graph, for 1 to 9 ranks and nine rounds.
//
//     #include <terse/laws/graph.hpp>
//
//     const terse::laws::Report report = terse::laws::check_graph(MyGraph{});
//     if (!report) std::puts(report.text().c_str());

namespace terse::laws {

namespace detail {

inline constexpr int graph_sizes = 9;
inline constexpr std::uint64_t graph_rounds = 9;

/// One round of a graph, as returned by one query.
struct GraphRound {
  int size;
  std::uint64_t round;
  std::vector<std::vector<graph::Edge>> rows;
  std::vector<std::vector<int>> receivers;
  std::vector<double> matrix;  // row-major; the diagonal is 1 - the sum of the row's weights

  double entry(int i, int j) const { return matrix[static_cast<std::size_t>(i * size + j)]; }
  std::string place(int rank) const {
    return std::to_string(size) + " ranks, round " + std::to_string(round) + ", rank " +
           std::to_string(rank) + ": ";
  }
};

template <class G>
GraphRound ask(const G& graph, int size, std::uint64_t round) {
  GraphRound asked{size, round, {}, {}, std::vector<double>(static_cast<std::size_t>(size * size))};
  for (int rank = 0; rank < size; ++rank) {
    // The graph must clear the vectors' old contents.
    auto& row = asked.rows.emplace_back(3, graph::Edge{-1, -1});
    auto& receivers = asked.receivers.emplace_back(3, -1);
    graph.row(rank, size, round, row);
    graph.receivers(rank, size, round, receivers);
    double own = 1;
    for (const graph::Edge& edge : row) {
      own -= edge.weight;
      if (edge.peer >= 0 && edge.peer < size)
        asked.matrix[static_cast<std::size_t>(rank * size + edge.peer)] += edge.weight;
    }
    asked.matrix[static_cast<std::size_t>(rank * size + rank)] += own;
  }
  return asked;
}

inline bool is_same(const GraphRound& one, const GraphRound& other) {
  return one.matrix == other.matrix && one.receivers == other.receivers;
}

inline std::string row_violation(const GraphRound& asked) {
  for (int rank = 0; rank < asked.size; ++rank) {
    int last = -1;
    for (const graph::Edge& edge : asked.rows[static_cast<std::size_t>(rank)]) {
      if (edge.peer <= last || edge.peer >= asked.size || edge.peer == rank)
        return asked.place(rank) +
               "its row is not of other ranks in ascending order: " + std::to_string(edge.peer) +
               " comes after " + std::to_string(last);
      if (!(edge.weight > 0))
        return asked.place(rank) + "weighs rank " + std::to_string(edge.peer) + " by " +
               graph::detail::digits(edge.weight);
      last = edge.peer;
    }
    if (!(asked.entry(rank, rank) >= -graph::stochastic_tolerance))
      return asked.place(rank) + "weighs its peers by more than 1 in all";
  }
  return "";
}

inline std::string receiver_violation(const GraphRound& asked) {
  for (int rank = 0; rank < asked.size; ++rank) {
    std::vector<int> wanted;
    for (int other = 0; other < asked.size; ++other)
      if (other != rank && asked.entry(other, rank) > 0) wanted.push_back(other);
    if (asked.receivers[static_cast<std::size_t>(rank)] != wanted)
      return asked.place(rank) + "is in the rows of " + std::to_string(wanted.size()) +
             " ranks, and receivers() names others";
  }
  return "";
}

inline std::string column_violation(const GraphRound& asked) {
  for (int rank = 0; rank < asked.size; ++rank) {
    double sum = 0;
    for (int other = 0; other < asked.size; ++other) sum += asked.entry(other, rank);
    if (!(std::abs(sum - 1) <= graph::stochastic_tolerance))
      return asked.place(rank) + "its column sums to " + graph::detail::digits(sum) + ", not to 1";
  }
  return "";
}

inline std::string symmetry_violation(const GraphRound& asked) {
  for (int i = 0; i < asked.size; ++i)
    for (int j = 0; j < i; ++j)
      if (!(std::abs(asked.entry(i, j) - asked.entry(j, i)) <= graph::stochastic_tolerance))
        return asked.place(i) + "weighs rank " + std::to_string(j) + " by " +
               graph::detail::digits(asked.entry(i, j)) + ", and that rank it by " +
               graph::detail::digits(asked.entry(j, i));
  return "";
}

inline std::string degree_violation(const GraphRound& asked) {
  for (std::size_t rank = 0; rank < asked.rows.size(); ++rank)
    if (asked.rows[rank].size() != asked.rows[0].size() ||
        asked.receivers[rank].size() != asked.rows[0].size())
      return asked.place(static_cast<int>(rank)) + "has not as many neighbours as rank 0";
  return "";
}

/// Checks the push-sum weights: a round turns w(k) into w(k + 1) and preserves their sum.
template <class G>
std::string push_sum_violation(const G& graph, const GraphRound& asked) {
  double sum = 0;
  for (int rank = 0; rank < asked.size; ++rank) {
    const double weight = graph.weight(rank, asked.size, asked.round);
    if (!(weight > 0) || (asked.round == 0 && std::not_equal_to{}(weight, 1.0)))
      return asked.place(rank) + "has the push-sum weight " + graph::detail::digits(weight);
    sum += weight;
    double handed_on = 0;
    for (int other = 0; other < asked.size; ++other)
      handed_on += graph.weight(other, asked.size, asked.round + 1) * asked.entry(other, rank);
    if (!(std::abs(handed_on - weight) <= graph::stochastic_tolerance * asked.size))
      return asked.place(rank) + "hands on " + graph::detail::digits(handed_on) + " of its weight " +
             graph::detail::digits(weight);
  }
  if (!(std::abs(sum - asked.size) <= graph::stochastic_tolerance * asked.size))
    return asked.place(0) + "the push-sum weights sum to " + graph::detail::digits(sum);
  return "";
}

/// Returns the sizes for which a graph throws no usage_error; other exceptions propagate.
template <class G>
std::vector<int> admitted_sizes(const G& graph) {
  std::vector<int> sizes;
  for (int size = 1; size <= graph_sizes; ++size) try {
      graph.check(size);
      sizes.push_back(size);
    } catch (const usage_error&) {
    }
  return sizes;
}

}  // namespace detail

/// Checks the laws of graphs for 1 to 9 ranks, if check(size) accepts them, in rounds 0 to 8:
///
///     sizes               check refuses 0 ranks with usage_error and admits some number up to 9
///     rows                rows contain other ranks, ascending, with weights above 0 that sum to 1 at most
///     receivers           receivers(rank) returns the ranks whose rows contain `rank`
///     pure                repeated queries, in another order and of a copy, return the same graph
///     fixed, symmetric, doubly stochastic, regular, spectrum        if stated, see Graph and graph::Traits
///     neighbours          most_neighbors(size), if stated, is not exceeded
///     push-sum            if stated: weights are positive, start at 1, sum to the number of ranks and are passed on whole
template <class G>
Report check_graph(const G& given = {}) {
  static_assert(graph::check_graph<G>());
  Report report{.compressor = type_name<G>(), .passed = {}, .not_applicable = {}, .failures = {}};
  const auto judge = [&](const char* law, bool applies, const auto& violation) {
    if (!applies) {
      report.not_applicable.emplace_back(law);
      return;
    }
    std::string what;
    try {
      what = violation();
    } catch (const std::exception& failure) {
      what = failure.what();
    }
    if (what.empty())
      report.passed.emplace_back(law);
    else
      report.failures.push_back({law, what});
  };
  judge("sizes", true, [&]() -> std::string {
    if (detail::admitted_sizes(given).empty()) return "check() admits no number of ranks up to 9";
    try {
      given.check(0);
    } catch (const usage_error&) {
      return "";
    }
    return "check(0) throws no usage_error";
  });
  if (!report) return report;

  const auto in_rounds = [&](const auto& violation) {
    return [&] {
      for (const int size : detail::admitted_sizes(given)) {
        G graph = given;
        graph.check(size);
        for (std::uint64_t round = 0; round < detail::graph_rounds; ++round)
          if (std::string what = violation(graph, detail::ask(graph, size, round)); !what.empty())
            return what;
      }
      return std::string();
    };
  };
  const auto of_round = [&](const char* law, bool applies,
                            std::string (*violation)(const detail::GraphRound&)) {
    judge(law, applies,
          in_rounds([&](const G&, const detail::GraphRound& asked) { return violation(asked); }));
  };
  of_round("rows", true, detail::row_violation);
  of_round("receivers", true, detail::receiver_violation);
  judge("pure", true, in_rounds([&](const G& graph, const detail::GraphRound& asked) -> std::string {
          const G copy = graph;
          detail::ask(graph, asked.size, 0);
          for (const G* again : {&graph, &copy})
            if (!detail::is_same(asked, detail::ask(*again, asked.size, asked.round)))
              return asked.place(0) + "asked again, the graph is another";
          return "";
        }));
  judge("fixed", G::fixed, in_rounds([&](const G& graph, const detail::GraphRound& asked) {
          return detail::is_same(asked, detail::ask(graph, asked.size, 0))
                     ? ""
                     : asked.place(0) + "not as in round 0";
        }));
  of_round("symmetric", G::symmetric, detail::symmetry_violation);
  of_round("doubly stochastic", G::doubly_stochastic, detail::column_violation);
  of_round("regular", G::regular, detail::degree_violation);
  judge("spectrum", graph::Traits<G>::spectrum_above_minus_third,
        in_rounds([&](const G&, const detail::GraphRound& asked) {
          const double least = graph::smallest_eigenvalue(asked.matrix);
          return least > -1.0 / 3 + graph::stochastic_tolerance
                     ? ""
                     : asked.place(0) + "an eigenvalue is " + graph::detail::digits(least);
        }));
  constexpr bool says_most = requires { given.most_neighbors(1); };
  judge("neighbours", says_most,
        in_rounds([&](const G& graph, const detail::GraphRound& asked) -> std::string {
          if constexpr (says_most)
            for (int rank = 0; rank < asked.size; ++rank)
              if (static_cast<int>(asked.rows[static_cast<std::size_t>(rank)].size()) >
                  graph.most_neighbors(asked.size))
                return asked.place(rank) + "has more neighbours than most_neighbors() returns";
          return "";
        }));
  constexpr bool pushes = graph::Traits<G>::push_sum;
  judge("push-sum", pushes, in_rounds([&](const G& graph, const detail::GraphRound& asked) -> std::string {
          if constexpr (pushes) return detail::push_sum_violation(graph, asked);
          return "";
        }));
  return report;
}

}  // namespace terse::laws

// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <new>
#include <numbers>
#include <numeric>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/type_name.hpp"
#include "terse/graph/graphs.hpp"

// Mixing graphs: rows, weights, flags, spectra, and what momentum does on them.

namespace {
std::atomic<std::uint64_t> allocations{0};
}

__attribute__((noinline)) void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace terse::graph;
using terse::usage_error;
using Weights = std::vector<double>;
using Rounds = std::initializer_list<std::uint64_t>;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// What() of the usage_error that `act` throws; empty if it throws none.
template <class Act>
std::string refusal(Act act) {
  try {
    act();
  } catch (const usage_error& failure) {
    return failure.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class G>
std::vector<int> peers_of(const G& graph, int rank, int size, std::uint64_t round = 0) {
  std::vector<Edge> edges;
  graph.row(rank, size, round, edges);
  std::vector<int> peers;
  for (const Edge& edge : edges) peers.push_back(edge.peer);
  return peers;
}

template <class G>
std::vector<double> weights_of(const G& graph, int rank, int size, std::uint64_t round = 0) {
  std::vector<Edge> edges;
  graph.row(rank, size, round, edges);
  std::vector<double> weights;
  for (const Edge& edge : edges) weights.push_back(edge.weight);
  return weights;
}

Weights times(const Weights& left, const Weights& right, int size) {
  Weights result(left.size(), 0);
  for (int i = 0; i < size; ++i)
    for (int j = 0; j < size; ++j)
      for (int k = 0; k < size; ++k)
        result[at(i * size + j)] += left[at(i * size + k)] * right[at(k * size + j)];
  return result;
}

/// One round of a graph, and what it declares.
struct Round {
  std::string name;
  bool symmetric, doubly_stochastic, regular;
  std::vector<std::vector<Edge>> rows;
  std::vector<std::vector<int>> receivers;
  Weights matrix;
};

template <class G>
Round round_of(const G& graph, int size, std::uint64_t round) {
  Round all{terse::type_name<G>(), G::symmetric, G::doubly_stochastic, G::regular, {}, {}, {}};
  for (int rank = 0; rank < size; ++rank) {
    graph.row(rank, size, round, all.rows.emplace_back(1, Edge{99, 99}));  // is cleared
    graph.receivers(rank, size, round, all.receivers.emplace_back(1, 99));
  }
  all.matrix = matrix_of(graph, size, round);
  return all;
}

/// Rows, columns and flags by hand: independent of verify().
void check_round(const Round& round, int size) {
  CAPTURE(round.name);
  CAPTURE(size);
  Weights w(at(size * size), 0);
  std::set<std::size_t> in_degrees, out_degrees;
  for (int i = 0; i < size; ++i) {
    double sum = 0;
    int last = -1;
    for (const Edge& edge : round.rows[at(i)]) {
      REQUIRE((edge.peer > last && edge.peer != i && edge.peer < size));
      CHECK(edge.weight > 0);
      last = edge.peer;
      sum += edge.weight;
      w[at(i * size + edge.peer)] = edge.weight;
    }
    CHECK(sum <= 1 + 1e-15);
    w[at(i * size + i)] = 1 - sum;
    in_degrees.insert(round.rows[at(i)].size());
  }
  for (int j = 0; j < size; ++j) {
    out_degrees.insert(round.receivers[at(j)].size());
    std::vector<int> expected;
    double column = 0;
    for (int i = 0; i < size; ++i) {
      if (i != j && w[at(i * size + j)] > 0) expected.push_back(i);
      column += w[at(i * size + j)];
      if (round.symmetric) CHECK(w[at(i * size + j)] == w[at(j * size + i)]);
    }
    CHECK(round.receivers[at(j)] == expected);
    if (round.doubly_stochastic) CHECK(std::abs(column - 1) < 1e-14);
  }
  if (round.regular) CHECK((in_degrees.size() == 1 && out_degrees.size() == 1));
  for (std::size_t k = 0; k < w.size(); ++k) CHECK(std::abs(round.matrix[k] - w[k]) < 1e-15);
}

template <class G>
void check_sizes(const G& graph, bool powers_of_two = false) {
  static_assert(check_graph<G>());
  static_assert(Graph<G> && Graph<Unchecked<G>>);
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
    if (powers_of_two && !is_power_of(size, 2)) continue;
    graph.check(size);
    for (const std::uint64_t round : Rounds{0, 1, 2, 3, 4, 103}) {
      check_round(round_of(graph, size, round), size);
      if (G::fixed) CHECK(matrix_of(graph, size, round) == matrix_of(graph, size, 0));
    }
    CHECK_NOTHROW(verify(graph, size, 5));
  }
  for (const int size : {0, -1}) CHECK(contains(refusal([&] { graph.check(size); }), "at least one rank"));
}

template <class G>
void check_sizes_lazily(const G& graph, bool powers_of_two = false) {
  check_sizes(graph, powers_of_two);
  check_sizes(Lazy<G>{graph}, powers_of_two);
  for (const int size : {2, 8}) {
    const Weights w = matrix_of(graph, size, 1), lazy = matrix_of(Lazy<G>{graph}, size, 1);
    for (int k = 0; k < size * size; ++k)
      CHECK(lazy[at(k)] == doctest::Approx((w[at(k)] + (k % (size + 1) == 0 ? 1 : 0)) / 2));
  }
}

/// Strongly connected, with out-degrees 2, 1, 2, 1, 3 and in-degrees 3, 2, 2, 1, 1.
DirectedList irregular() { return {{{1, 2}, {0}, {3, 0}, {4}, {0, 1, 2}}}; }

/// max |z| over the roots of z^2 - (lambda + beta) z + beta.
double root_modulus(std::complex<double> lambda, double beta) {
  const std::complex<double> sum = lambda + beta, root = std::sqrt(sum * sum - 4 * beta);
  return std::max(std::abs(sum + root), std::abs(sum - root)) / 2;
}

/// Eigenvalue k of the circulant that takes equal shares from `hops` and itself.
std::complex<double> circulant_eigenvalue(const std::vector<int>& hops, int k, int size) {
  std::complex<double> sum = 1;
  for (const int hop : hops) sum += std::polar(1.0, -2 * std::numbers::pi * k * hop / size);
  return sum / static_cast<double>(hops.size() + 1);
}

template <class G>
double lambda_2(const G& graph, int size) {
  return 2 * second_largest_modulus(matrix_of(Lazy<G>{graph}, size, 0)) - 1;
}

template <class G>
double lambda_min(const G& graph, int size) {
  return smallest_eigenvalue(matrix_of(graph, size, 0));
}

template <class G>
double rho(const G& graph, int size) {
  return second_largest_modulus(matrix_of(graph, size, 0));
}

/// As printed, to three decimals.
doctest::Approx printed(double value) {
  return doctest::Approx(value).epsilon(0.00052 / std::max(1.0, std::abs(value)));
}

}  // namespace

TEST_CASE("powers are told in integers, exactly") {
  static_assert(is_power_of(243, 3) && !is_power_of(244, 3) && !is_power_of(242, 3));
  static_assert(is_power_of(1, 2) && is_power_of(1, 7) && !is_power_of(0, 2) && !is_power_of(-8, 2));
  static_assert(is_power_of(1 << 30, 2) && !is_power_of((1 << 30) - 1, 2) && is_power_of(1000000000, 10));
  int power = 1, found = 0;
  for (int value = 1; value <= 1000000; ++value) {
    const bool expected = value == power;
    if (expected) power *= 3;
    if (is_power_of(value, 3) != expected) FAIL(value);
    found += expected ? 1 : 0;
  }
  CHECK(found == 13);
  static_assert(ceil_log2(1) == 0 && ceil_log2(2) == 1 && ceil_log2(3) == 2 && ceil_log2(4) == 2);
  static_assert(ceil_log2(5) == 3 && ceil_log2(8) == 3 && ceil_log2(9) == 4 &&
                ceil_log2((1 << 30) + 1) == 31);
  static_assert(grid_rows(1) == 1 && grid_rows(2) == 1 && grid_rows(4) == 2 && grid_rows(7) == 1);
  static_assert(grid_rows(8) == 2 && grid_rows(9) == 3 && grid_rows(12) == 3 && grid_rows(16) == 4);
}

TEST_CASE("hops that are powers of 3 up to 243 exist for 244 ranks") {
  const Uniform<adjacency::DirectedExponential<3>> directed;
  CHECK(peers_of(directed, 243, 244) == std::vector<int>{0, 162, 216, 234, 240, 242});
  std::vector<int> peers;
  directed.receivers(0, 244, 0, peers);
  CHECK(peers == std::vector<int>{1, 3, 9, 27, 81, 243});
  CHECK(peers_of(Uniform<adjacency::SymmetricExponential<3>>{}, 0, 20) ==
        std::vector<int>{1, 3, 9, 11, 17, 19});
}

TEST_CASE("neighbours of the named graphs") {
  using Peers = std::vector<int>;
  CHECK(peers_of(Ring{}, 0, 8) == Peers{1, 7});
  CHECK(weights_of(Ring{}, 0, 8) == Weights{1.0 / 3, 1.0 / 3});
  CHECK(peers_of(Mesh{}, 0, 8) == Peers{1, 4});
  CHECK(peers_of(Mesh{}, 5, 8) == Peers{1, 4, 6});
  CHECK(weights_of(Mesh{}, 0, 8) == Weights{1.0 / 4, 1.0 / 3});
  CHECK(peers_of(Mesh{}, 1, 3) == Peers{0, 2});
  CHECK(peers_of(Torus{}, 0, 9) == Peers{1, 2, 3, 6});
  CHECK(weights_of(Torus{}, 0, 9) == Weights(4, 1.0 / 5));
  CHECK(peers_of(Torus{}, 0, 8) == Peers{1, 3, 4});
  CHECK(peers_of(Torus{}, 0, 4) == Peers{1, 2});
  CHECK(peers_of(Torus{}, 0, 5) == Peers{1, 4});
  CHECK(peers_of(Star{}, 0, 4) == Peers{1, 2, 3});
  CHECK(peers_of(Star{}, 3, 4) == Peers{0});
  CHECK(weights_of(Star{}, 0, 8) == Weights(7, 1.0 / 8));
  CHECK(weights_of(Star{}, 5, 8) == Weights{1.0 / 8});
  CHECK(peers_of(Complete{}, 1, 4) == Peers{0, 2, 3});
  CHECK(weights_of(Complete{}, 1, 4) == Weights(3, 1.0 / 4));
  CHECK(peers_of(Hypercube{}, 5, 8) == Peers{1, 4, 7});
  CHECK(peers_of(DirectedExponential{}, 0, 8) == Peers{4, 6, 7});
  CHECK(peers_of(DirectedExponential{}, 0, 6) == Peers{2, 4, 5});
  CHECK(weights_of(DirectedExponential{}, 0, 8) == Weights(3, 1.0 / 4));
  CHECK(peers_of(SymmetricExponential{}, 0, 8) == Peers{1, 2, 4, 6, 7});
  CHECK(weights_of(SymmetricExponential{}, 0, 8) == Weights(5, 1.0 / 6));
  CHECK(peers_of(SymmetricExponential{}, 0, 7) == Peers{1, 2, 5, 6});
  for (const std::uint64_t round : Rounds{0, 1, 2, 3, 4, 5}) {
    const int hop = 1 << (round % 3);
    CHECK(peers_of(OnePeerExponential{}, 0, 8, round) == Peers{8 - hop});
    CHECK(peers_of(OnePeerExponential{}, 0, 5, round) == Peers{5 - hop});
    CHECK(weights_of(OnePeerExponential{}, 0, 8, round) == Weights{0.5});
    CHECK(peers_of(OnePeerHypercube{}, 5, 8, round) == Peers{5 ^ hop});
    CHECK(weights_of(OnePeerHypercube{}, 5, 8, round) == Weights{0.5});
  }
}

TEST_CASE("one rank has no neighbours, and two are a pair") {
  const auto check = [](const auto& graph) {
    CAPTURE(terse::type_name<std::decay_t<decltype(graph)>>());
    CHECK(peers_of(graph, 0, 1).empty());
    CHECK(peers_of(graph, 0, 2) == std::vector<int>{1});
    CHECK(peers_of(graph, 1, 2) == std::vector<int>{0});
    CHECK(weights_of(graph, 0, 2) == Weights{0.5});
    CHECK(second_largest_modulus(matrix_of(graph, 1, 0)) == 0);
    CHECK(second_largest_modulus(matrix_of(graph, 2, 0)) == 0);
    CHECK(heavy_ball_growth(graph, 1, 0.9, 3) == 0);
  };
  check(Ring{});
  check(Mesh{});
  check(Torus{});
  check(Star{});
  check(Complete{});
  check(Hypercube{});
  check(DirectedExponential{});
  check(SymmetricExponential{});
  check(OnePeerExponential{});
  check(OnePeerHypercube{});
  check(RandomMatching{});
  check(ErdosRenyi{.probability = 1});
  CHECK(smallest_eigenvalue({1}) == 1);
}

TEST_CASE("rows, columns, receivers and flags hold for every size") {
  check_sizes_lazily(Ring{});
  check_sizes_lazily(Mesh{});
  check_sizes_lazily(Torus{});
  check_sizes_lazily(Star{});
  check_sizes_lazily(Complete{});
  check_sizes_lazily(Hypercube{}, true);
  check_sizes_lazily(DirectedExponential{});
  check_sizes_lazily(SymmetricExponential{});
  check_sizes_lazily(OnePeerExponential{});
  check_sizes_lazily(OnePeerHypercube{}, true);
  check_sizes_lazily(RandomMatching{.seed = 5});
  check_sizes_lazily(ErdosRenyi{.probability = 0.9, .seed = 4});
  check_sizes_lazily(Uniform<adjacency::Mesh>{});
  check_sizes_lazily(Uniform<Star>{});
  check_sizes_lazily(MetropolisHastings<adjacency::SymmetricExponential<3>>{});
  check_sizes(PushSum<OnePeerExponential>{});
  check_sizes(PushSum<Star>{});
  check_sizes(PushSum<RandomMatching>{RandomMatching{.seed = 2}});
  verify(PushSum{irregular()}, 5, 50);
  verify(Uniform<DirectedList>{irregular()}, 5, 2);
}

TEST_CASE("flags are what the theory relies on") {
  const auto flags = []<class G>(const G&) {
    return std::array<bool, 5>{G::fixed, G::symmetric, G::doubly_stochastic, G::regular,
                               Traits<G>::spectrum_above_minus_third};
  };
  using Flags = std::array<bool, 5>;
  CHECK(flags(Ring{}) == Flags{true, true, true, true, false});
  CHECK(flags(Mesh{}) == Flags{true, true, true, false, false});
  CHECK(flags(Torus{}) == Flags{true, true, true, true, false});
  CHECK(flags(Star{}) == Flags{true, true, true, false, true});
  CHECK(flags(Complete{}) == Flags{true, true, true, true, true});
  CHECK(flags(Hypercube{}) == Flags{true, true, true, true, false});
  CHECK(flags(DirectedExponential{}) == Flags{true, false, true, true, false});
  CHECK(flags(SymmetricExponential{}) == Flags{true, true, true, true, false});
  CHECK(flags(OnePeerExponential{}) == Flags{false, false, true, true, false});
  CHECK(flags(OnePeerHypercube{}) == Flags{false, true, true, true, false});
  CHECK(flags(RandomMatching{}) == Flags{false, true, true, false, false});
  CHECK(flags(ErdosRenyi{}) == Flags{true, true, true, false, false});
  CHECK(flags(RowStochasticMatrix{}) == Flags{true, false, false, false, false});
  CHECK(flags(DoublyStochasticMatrix{}) == Flags{true, false, true, false, false});
  CHECK(flags(SymmetricMatrix{}) == Flags{true, true, true, false, false});
  CHECK(flags(Uniform<Star>{}) == Flags{true, false, false, false, false});
  CHECK(flags(Uniform<adjacency::Ring>{}) == Flags{true, true, true, true, false});
  CHECK(flags(MetropolisHastings<Complete>{}) == Flags{true, true, true, true, false});
  CHECK(flags(PushSum<Star>{}) == Flags{false, false, false, false, false});
  CHECK(flags(Lazy<Mesh>{}) == Flags{true, true, true, false, true});
  CHECK(flags(Lazy<OnePeerHypercube>{}) == Flags{false, true, true, true, true});
  CHECK(flags(Lazy<DirectedExponential>{}) == Flags{true, false, true, true, false});
  CHECK(flags(Unchecked<Lazy<Ring>>{}) == Flags{true, true, true, true, true});
  static_assert(Traits<Unchecked<Ring>>::unchecked && Traits<Lazy<Unchecked<Ring>>>::unchecked);
  static_assert(!Traits<Ring>::unchecked && !Traits<Ring>::push_sum && !Traits<Ring>::lazy);
  static_assert(Traits<Lazy<Ring>>::lazy && Traits<Unchecked<Lazy<Ring>>>::lazy);
  static_assert(Traits<SymmetricMatrix>::known_at_construction &&
                Traits<Lazy<SymmetricMatrix>>::known_at_construction);
  static_assert(!Traits<DoublyStochasticMatrix>::known_at_construction &&
                !Traits<Ring>::known_at_construction);
  // Other weights are other weights.
  using Again = MetropolisHastings<Lazy<SymmetricMatrix>>;
  static_assert(!Traits<Again>::lazy && !Traits<Again>::known_at_construction);
  static_assert(!Traits<Uniform<Lazy<Star>>>::lazy && !Traits<PushSum<Lazy<Star>>>::lazy);
  static_assert(Traits<PushSum<Star>>::push_sum && !Traits<PushSum<Star>>::unchecked);
  static_assert(!Graph<int> && !Graph<adjacency::Ring> && !Graph<DirectedList> && Adjacency<Ring>);
}

TEST_CASE("one-peer graphs give the exact mean after a period") {
  for (const int size : {2, 4, 8, 16}) {
    const auto check = [&](const auto& graph) {
      CAPTURE(size);
      const int period = ceil_log2(size);
      for (const int begin : {0, 1, 7}) {
        Weights all = matrix_of(graph, size, static_cast<std::uint64_t>(begin));
        for (int k = 1; k < period; ++k)
          all = times(matrix_of(graph, size, static_cast<std::uint64_t>(begin + k)), all, size);
        for (const double weight : all) CHECK(weight == 1.0 / size);
      }
    };
    check(OnePeerExponential{});
    check(OnePeerHypercube{});
  }
}

TEST_CASE("rounds may be as many as 64 bits count") {
  const std::uint64_t last = ~std::uint64_t{0};  // 0 mod 3, and 3 mod 4
  CHECK(peers_of(OnePeerExponential{}, 0, 8, last) == std::vector<int>{7});
  CHECK(peers_of(OnePeerHypercube{}, 0, 16, last) == std::vector<int>{8});
  check_round(round_of(RandomMatching{}, 9, last), 9);
}

TEST_CASE("hypercubes need a power of two") {
  for (const int size : {3, 5, 6, 7, 9, 12}) {
    CHECK(contains(refusal([&] { Hypercube{}.check(size); }), "not " + std::to_string(size)));
    CHECK(contains(refusal([&] { OnePeerHypercube{}.check(size); }), "1, 2, 4, 8"));
  }
}

TEST_CASE("spectra are the known ones") {
  CHECK(lambda_min(Mesh{}, 8) == printed(-0.384));
  CHECK(lambda_2(Mesh{}, 8) == printed(0.854));
  CHECK(lambda_min(Mesh{}, 16) == printed(-0.431));
  CHECK(lambda_2(Mesh{}, 16) == printed(0.869));
  CHECK(lambda_2(Ring{}, 8) == printed(0.805));
  CHECK(lambda_2(Ring{}, 16) == printed(0.949));
  CHECK(lambda_min(SymmetricExponential{}, 8) == printed(-0.236));
  const auto exact = [](double value) { return doctest::Approx(value).epsilon(1e-12); };
  CHECK(lambda_min(Ring{}, 8) == exact(-1.0 / 3));
  CHECK(lambda_min(Ring{}, 16) == exact(-1.0 / 3));
  CHECK(std::abs(lambda_min(Star{}, 8)) < 1e-12);
  CHECK(lambda_2(Star{}, 8) == exact(0.875));
  CHECK(lambda_2(SymmetricExponential{}, 8) == exact(1.0 / 3));
  CHECK(rho(DirectedExponential{}, 4) == exact(1.0 / 3));
  CHECK(rho(DirectedExponential{}, 8) == exact(1.0 / 2));
  CHECK(rho(DirectedExponential{}, 16) == exact(3.0 / 5));
  CHECK(rho(DirectedExponential{}, 32) == exact(2.0 / 3));
  CHECK(rho(DirectedExponential{}, 64) == exact(5.0 / 7));
  CHECK(rho(Complete{}, 7) < 1e-12);
  CHECK(lambda_min(Hypercube{}, 16) == exact(-3.0 / 5));
  CHECK(rho(Hypercube{}, 16) == exact(3.0 / 5));
  for (const int size : {3, 5, 8, 13}) {
    double largest = 0, smallest = 1;
    for (int k = 1; k < size; ++k) {
      const double lambda = (1 + 2 * std::cos(2 * std::numbers::pi * k / size)) / 3;
      largest = std::max(largest, std::abs(lambda));
      smallest = std::min(smallest, lambda);
    }
    CHECK(std::abs(rho(Ring{}, size) - largest) < 1e-12);
    CHECK(std::abs(lambda_min(Ring{}, size) - smallest) < 1e-12);
    CHECK(std::abs(lambda_min(Lazy<Ring>{}, size) - (1 + smallest) / 2) < 1e-12);
  }
  // Row-stochastic only, eigenvalues 1 and 0.2; a cycle, whose eigenvalues all lie on the unit circle.
  CHECK(second_largest_modulus({0.9, 0.1, 0.7, 0.3}) == exact(0.2));
  CHECK(second_largest_modulus({0, 1, 0, 0, 0, 1, 1, 0, 0}) == exact(1));
  CHECK(second_largest_modulus({1, 0, 0, 1}) == exact(1));
}

TEST_CASE("spectra refuse what is no mixing matrix") {
  CHECK(contains(refusal([] { second_largest_modulus({}); }), "square"));
  CHECK(contains(refusal([] { second_largest_modulus({1, 0, 0}); }), "3 entries"));
  CHECK(contains(refusal([] { second_largest_modulus({1, 0, 0.5, 0.4}); }), "row 1 sums to 0.9"));
  CHECK(contains(refusal([] { smallest_eigenvalue({0.5, 0.5, 0.25, 0.75}); }), "row 0, column 1 is 0.5"));
  CHECK(contains(refusal([] { heavy_ball_consensus_radius({2, -1, 0, 1}, 0.9); }), "row 0, column 1 is -1"));
  CHECK(contains(refusal([] { heavy_ball_growth(Ring{}, 4, 0.9, 0); }), "at least one round"));
  CHECK(contains(refusal([] { heavy_ball_growth(Hypercube{}, 6, 0.9, 1); }), "not 6"));
}

TEST_CASE("the heavy ball's radius is that of its characteristic polynomials") {
  for (const double beta : {0.0, 0.3, 0.5, 0.9, 0.99})
    for (const int size : {3, 4, 6, 8, 16}) {
      CAPTURE(beta);
      CAPTURE(size);
      std::vector<int> hops;
      for (int hop = 1; hop < size; hop *= 2) hops.push_back(hop);
      double directed = 0, ring = 0;
      for (int k = 1; k < size; ++k) {
        directed = std::max(directed, root_modulus(circulant_eigenvalue(hops, k, size), beta));
        ring = std::max(ring, root_modulus(circulant_eigenvalue({1, size - 1}, k, size), beta));
      }
      const Weights exp2 = matrix_of(DirectedExponential{}, size, 0), circle = matrix_of(Ring{}, size, 0);
      // Where beta or a root is 0 there are Jordan blocks, and digits are lost.
      CHECK(std::abs(heavy_ball_consensus_radius(exp2, beta) - directed) < 1e-7);
      CHECK(std::abs(heavy_ball_consensus_radius(circle, beta) - ring) < 1e-7);
      if (beta == 0.9) CHECK(std::abs(heavy_ball_consensus_radius(exp2, beta) - directed) < 1e-11);
      if (beta == 0.9)
        CHECK(std::abs(heavy_ball_growth(DirectedExponential{}, size, beta, 50) - directed) < 1e-9);
      CHECK(heavy_ball_consensus_radius(circle, beta) < 1);
    }
  // Row-stochastic only: the eigenvalue besides 1 is 0.2.
  const double radius = heavy_ball_consensus_radius({0.9, 0.1, 0.7, 0.3}, 0.5);
  CHECK(radius == doctest::Approx(root_modulus(0.2, 0.5)).epsilon(1e-12));
}

namespace {

/// All matchings of `size` ranks that leave none or one alone, as lists of partners, -1: alone.
std::vector<std::vector<int>> all_matchings(int size) {
  std::vector<std::vector<int>> all;
  std::vector<int> partner(static_cast<std::size_t>(size), -2);
  const std::function<void(bool)> match = [&](bool one_alone) {
    const auto free = std::find(partner.begin(), partner.end(), -2);
    if (free == partner.end()) {
      all.push_back(partner);
      return;
    }
    const auto place = free - partner.begin();
    for (auto other = free + 1; other != partner.end(); ++other) {
      if (*other != -2) continue;
      *free = static_cast<int>(other - partner.begin());
      *other = static_cast<int>(place);
      match(one_alone);
      *free = *other = -2;
    }
    if (one_alone) {
      *free = -1;
      match(false);
      *free = -2;
    }
  };
  match(size % 2 == 1);
  return all;
}

/// m and x of all ranks in a round of NoLoCo without gradients, ranks' common part taken out at the start.
struct PairRun {
  std::vector<double> x, m;
  void step(const std::vector<int>& partner, double rate, double momentum) {
    const std::vector<double> before = x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t j = partner[i] < 0 ? i : static_cast<std::size_t>(partner[i]);
      m[i] = momentum * m[i] + rate * ((before[i] + before[j]) / 2 - before[i]);
      x[i] += m[i];
    }
  }
  double distance() const { return std::inner_product(x.begin(), x.end(), x.begin(), 0.0); }
};

/// Mean squared distances after rounds 0, 1, ..., all matchings being equally likely in each.
std::vector<double> mean_distances(int size, int rounds, double rate, double momentum) {
  const auto matchings = all_matchings(size);
  const auto n = static_cast<std::size_t>(size), width = 2 * n;
  // Second moments of x, m, column by column.
  std::vector<std::vector<double>> moments(width, std::vector<double>(width));
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) moments[i][j] = (i == j ? 1 : 0) - 1.0 / size;
  std::vector<double> means;
  for (int round = 0; round <= rounds; ++round) {
    means.push_back(0);
    for (std::size_t i = 0; i < n; ++i) means.back() += moments[i][i];
    std::vector<std::vector<double>> next(width, std::vector<double>(width));
    for (const auto& matching : matchings) {
      auto now = moments;
      for (int side = 0; side < 2; ++side) {
        for (auto& column : now) {
          const auto middle = column.begin() + size;
          PairRun run{{column.begin(), middle}, {middle, column.end()}};
          run.step(matching, rate, momentum);
          std::copy(run.m.begin(), run.m.end(), std::copy(run.x.begin(), run.x.end(), column.begin()));
        }
        const auto across = now;
        for (std::size_t i = 0; i < width; ++i)
          for (std::size_t j = 0; j < width; ++j) now[i][j] = across[j][i];
      }
      for (std::size_t i = 0; i < width; ++i)
        for (std::size_t j = 0; j < width; ++j)
          next[i][j] += now[i][j] / static_cast<double>(matchings.size());
    }
    moments = std::move(next);
  }
  return means;
}

}  // namespace

TEST_CASE("momentum among random pairs grows as the mean over all matchings says") {
  for (const int size : {3, 4, 5, 6})
    for (const double momentum : {0.0, 0.5, 0.9}) {
      CAPTURE(size);
      CAPTURE(momentum);
      // A map of three moments obeys a recurrence of order 3, whose coefficients six means tell.
      const auto a = mean_distances(size, 5, 0.7, momentum);
      const auto det = [&](int r, int s, int t) {
        const auto at = [&](int k, int c) { return a[static_cast<std::size_t>(k + c)]; };
        return at(0, r) * (at(1, s) * at(2, t) - at(1, t) * at(2, s)) -
               at(0, s) * (at(1, r) * at(2, t) - at(1, t) * at(2, r)) +
               at(0, t) * (at(1, r) * at(2, s) - at(1, s) * at(2, r));
      };
      if (momentum == 0) {
        CHECK(std::sqrt(a[4] / a[3]) == doctest::Approx(pair_momentum_growth(size, 0.7, 0)).epsilon(1e-12));
        continue;
      }
      const double whole = det(0, 1, 2), square = std::pow(pair_momentum_growth(size, 0.7, momentum), 2);
      // Cramer: a(k + 3) = p a(k) + q a(k + 1) + r a(k + 2).
      const double p = det(3, 1, 2) / whole, q = det(0, 3, 2) / whole, r = det(0, 1, 3) / whole;
      CHECK(std::abs(square * square * square - r * square * square - q * square - p) < 1e-7);
      // No root is larger.
      for (double more = square * 1.001; more < 2; more += 0.01)
        CHECK(more * more * more - r * more * more - q * more - p > 0);
    }
  // Random matchings do as all do.
  const double exact = mean_distances(6, 4, 0.7, 0.9).back() / 5;
  double sum = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    PairRun run{std::vector<double>(6, -1.0 / 6), std::vector<double>(6)};
    run.x[0] += 1;
    for (std::uint64_t round = 0; round < 4; ++round) {
      std::vector<int> partner;
      for (int rank = 0; rank < 6; ++rank) partner.push_back(RandomMatching{seed}.partner(rank, 6, round));
      run.step(partner, 0.7, 0.9);
    }
    sum += run.distance() / (5.0 / 6);
  }
  CHECK(sum / 4000 == doctest::Approx(exact).epsilon(0.05));
}

TEST_CASE("momentum among random pairs must be below a known limit") {
  const std::vector<std::pair<int, double>> limits{{3, 0.8062}, {4, 0.8667},  {5, 0.8062},
                                                   {8, 0.8316}, {16, 0.8180}, {1000001, 0.8062}};
  for (const auto& [size_, limit] : limits) {
    const int size = size_;
    CAPTURE(size);
    CHECK(pair_momentum_growth(size, 0.7, limit - 0.001) < 1);
    CHECK(pair_momentum_growth(size, 0.7, limit + 0.001) > 1);
  }
  // Two ranks agree in their first round, and momentum takes them past each other.
  CHECK(pair_momentum_growth(2, 0.7, 0) == doctest::Approx(0.3));
  CHECK(pair_momentum_growth(2, 0.7, 0.9) == doctest::Approx(std::sqrt(0.9)));
  CHECK(pair_momentum_growth(2, 2.1, 0) > 1);
  CHECK(pair_momentum_growth(1, 0.7, 0.99) == 0);
}

TEST_CASE("momentum diverges on the directed exponential graph beyond a known beta") {
  const std::vector<std::pair<int, double>> limits{{4, 0.638},  {6, 0.750},  {8, 0.520},
                                                   {16, 0.499}, {32, 0.512}, {64, 0.527}};
  for (const auto& [size_, limit] : limits) {
    const int size = size_;  // a lambda takes no binding
    CAPTURE(size);
    const Weights w = matrix_of(DirectedExponential{}, size, 0);
    CHECK(heavy_ball_consensus_radius(w, limit - 0.001) < 1);
    CHECK(heavy_ball_consensus_radius(w, limit + 0.001) > 1);
    if (size >= 8) CHECK(std::abs(heavy_ball_consensus_radius(w, 0.9) - 1.24) < 0.015);
  }
  const Weights lazy = matrix_of(Lazy<DirectedExponential>{}, 8, 0);
  CHECK(std::abs(heavy_ball_consensus_radius(lazy, 0.9) - 1.13) < 0.005);
}

namespace {

/// Growth at beta 0.6, 0.7, 0.8, 0.9, and lazily at 0.8, 0.9.
template <class G>
void check_growth(const G& graph, int size, std::uint64_t rounds, const std::array<double, 6>& expected,
                  double tolerance) {
  CAPTURE(terse::type_name<G>());
  CAPTURE(size);
  const std::array<double, 6> betas{0.6, 0.7, 0.8, 0.9, 0.8, 0.9};
  for (std::size_t k = 0; k < 6; ++k) {
    CAPTURE(betas[k]);
    const double growth = k < 4 ? heavy_ball_growth(graph, size, betas[k], rounds)
                                : heavy_ball_growth(Lazy<G>{graph}, size, betas[k], rounds);
    CAPTURE(growth);
    CHECK(std::abs(growth - expected[k]) < tolerance);
  }
}

}  // namespace

TEST_CASE("momentum grows on schedules as known") {
  check_growth(OnePeerExponential{}, 8, 3, {0.936, 0.996, 1.056, 1.114, 1.021, 1.078}, 0.0006);
  check_growth(OnePeerExponential{}, 16, 4, {1.029, 1.089, 1.145, 1.196, 1.028, 1.084}, 0.0006);
  check_growth(OnePeerHypercube{}, 8, 3, {0.947, 0.997, 1.034, 1.052, 0.894, 0.949}, 0.0006);
  check_growth(OnePeerHypercube{}, 16, 4, {1.036, 1.102, 1.163, 1.220, 0.894, 0.949}, 0.0006);
  check_growth(RandomMatching{.seed = 1}, 8, 4000, {0.904, 0.960, 1.012, 1.064, 0.948, 1.001}, 0.008);
  check_growth(RandomMatching{.seed = 1}, 16, 4000, {0.925, 0.979, 1.031, 1.083, 0.957, 1.010}, 0.008);
  // Long runs of what shrinks and of what grows give the rate of a period.
  CHECK(heavy_ball_growth(OnePeerHypercube{}, 8, 0.9, 3000) == doctest::Approx(1.0524).epsilon(1e-4));
  CHECK(heavy_ball_growth(Lazy<OnePeerHypercube>{}, 8, 0.9, 3000) == doctest::Approx(0.949).epsilon(1e-3));
  // The three-round product in closed form.
  const std::vector<std::pair<double, double>> closed{{0.7, 0.9908}, {0.8, 1.1044}, {0.9, 1.1655}};
  for (const auto& [beta, product] : closed)
    CHECK(std::abs(std::pow(heavy_ball_growth(OnePeerHypercube{}, 8, beta, 3), 3) - product) < 1e-4);
  // Without momentum a period ends in exact consensus.
  CHECK(heavy_ball_growth(OnePeerHypercube{}, 8, 0, 3) < 1e-5);
}

TEST_CASE("random matchings are matchings, the same for all ranks, and differ over rounds") {
  const RandomMatching matching{.seed = 42};
  for (const int size : {1, 2, 3, 4, 7, 8, 16, 33}) {
    std::set<std::vector<int>> seen;
    for (std::uint64_t round = 0; round < 40; ++round) {
      std::vector<int> partners;
      int alone = 0;
      for (int rank = 0; rank < size; ++rank) partners.push_back(matching.partner(rank, size, round));
      for (int rank = 0; rank < size; ++rank) {
        const int partner = partners[at(rank)];
        if (partner < 0)
          ++alone;
        else
          CHECK((partner != rank && partner < size && partners[at(partner)] == rank));
        std::vector<int> peers;
        const RandomMatching copy{.seed = 42};  // another rank's
        copy.receivers(rank, size, round, peers);
        CHECK(peers == (partner < 0 ? std::vector<int>{} : std::vector<int>{partner}));
        CHECK(peers_of(copy, rank, size, round) == peers);
      }
      CHECK(alone == size % 2);
      seen.insert(partners);
    }
    if (size >= 16) CHECK(seen.size() == 40);
    if (size == 3 || size == 4) CHECK(seen.size() == 3);
  }
  int same = 0;
  for (std::uint64_t round = 0; round < 100; ++round)
    same += matching.partner(0, 16, round) == RandomMatching{.seed = 43}.partner(0, 16, round) ? 1 : 0;
  CHECK(same < 20);
}

TEST_CASE("all matchings are equally likely") {
  std::map<std::vector<int>, int> counts;
  const int rounds = 15000;
  for (int round = 0; round < rounds; ++round) {
    std::vector<int> partners;
    for (int rank = 0; rank < 6; ++rank)
      partners.push_back(RandomMatching{.seed = 9}.partner(rank, 6, static_cast<std::uint64_t>(round)));
    ++counts[partners];
  }
  CHECK(counts.size() == 15);
  double chi_squared = 0;
  for (const auto& [matching, count] : counts)
    chi_squared += std::pow(count - rounds / 15.0, 2) / (rounds / 15.0);
  CHECK(chi_squared < 36);  // 14 degrees of freedom: 0.1 %
}

TEST_CASE("random graphs have as many edges as they should, and refuse to fall apart") {
  int edges = 0, same = 0;
  for (int from = 0; from < 200; ++from)
    for (int to = 0; to < from; ++to) {
      const ErdosRenyi graph{.probability = 0.3, .seed = 3};
      edges += graph.sends(from, to, 200, 0) ? 1 : 0;
      CHECK(graph.sends(from, to, 200, 0) == graph.sends(to, from, 200, 7));
      same +=
          graph.sends(from, to, 200, 0) && ErdosRenyi{.probability = 0.3, .seed = 4}.sends(from, to, 200, 0);
    }
  CHECK(std::abs(edges - 19900 * 0.3) < 4 * std::sqrt(19900 * 0.3 * 0.7));
  CHECK(std::abs(same - 19900 * 0.09) < 4 * std::sqrt(19900 * 0.09 * 0.91));
  const std::string apart = refusal([] { ErdosRenyi{.probability = 0, .seed = 6}.check(3); });
  CHECK(contains(apart, "not connected"));
  CHECK(contains(apart, "from rank 0 to rank 1"));
  CHECK(contains(apart, "seed 6"));
  CHECK_NOTHROW(ErdosRenyi{.probability = 0}.check(1));
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const ErdosRenyi graph{.probability = 0.25, .seed = seed};
    const bool parts = !refusal([&] { graph.check(8); }).empty();
    CHECK(parts == (second_largest_modulus(matrix_of(graph, 8, 0)) > 1 - 1e-9));
    refused += parts ? 1 : 0;
  }
  CHECK((refused > 30 && refused < 95));
  for (const double probability : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()})
    CHECK(contains(refusal([&] { ErdosRenyi{.probability = probability}.check(4); }), "in [0, 1]"));
}

TEST_CASE("a matrix is what it says, or is refused") {
  const Weights mesh = matrix_of(Mesh{}, 6, 0);
  check_round(round_of(SymmetricMatrix{.weights = mesh}, 6, 3), 6);
  verify(SymmetricMatrix{.weights = mesh}, 6, 2);
  verify(Lazy<SymmetricMatrix>{{.weights = mesh}}, 6, 2);
  const Weights circle{0.5, 0.5, 0, 0, 0.5, 0.5, 0.5, 0, 0.5}, rows{1, 0, 0, 0.5, 0.5, 0, 0.25, 0.25, 0.5};
  verify(DoublyStochasticMatrix{.weights = circle}, 3, 2);
  verify(RowStochasticMatrix{.weights = rows}, 3, 2);
  check_round(round_of(RowStochasticMatrix{.weights = rows}, 3, 0), 3);
  verify(SymmetricMatrix{.weights = {1}}, 1, 1);
  verify(RowStochasticMatrix{.weights = {0, 1, 1, 0}}, 2, 1);

  const auto symmetric = [](const Weights& w, int n) {
    return refusal([&] { SymmetricMatrix{w}.check(n); });
  };
  CHECK(contains(symmetric(circle, 3),
                 "declared symmetric, but row 0, column 1 is 0.5 and row 1, column 0 is 0"));
  CHECK(contains(symmetric(mesh, 5), "6 x 6, but there are 5 ranks"));
  CHECK(contains(symmetric({1, 0}, 1), "square; this one has 2 entries"));
  CHECK(contains(symmetric({}, 1), "square; this one has 0 entries"));
  CHECK(contains(symmetric({1.5, -0.5, -0.5, 1.5}, 2), "row 0, column 1 is -0.5"));
  CHECK(contains(symmetric({0.5, 0.4, 0.4, 0.5}, 2), "row 0 sums to 0.9"));
  CHECK(contains(symmetric({1}, 0), "at least one rank"));
  CHECK(contains(refusal([&] { DoublyStochasticMatrix{rows}.check(3); }), "column 0 sums to 1.75"));
  CHECK(contains(refusal([&] {
                   RowStochasticMatrix{{0.5, 0.5, 0.3333, 0.6666}}.check(2);
                 }),
                 "row 1 sums to 0.9999"));
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  CHECK(contains(refusal([&] { RowStochasticMatrix{{nan}}.check(1); }), "column 0 is"));
  CHECK(contains(refusal([&] { RowStochasticMatrix{{inf}}.check(1); }), "row 0 sums to inf"));
  CHECK_NOTHROW(SymmetricMatrix{{0.5, 0.5 + 1e-10, 0.5, 0.5}}.check(2));
  CHECK_FALSE(symmetric({0.5 - 2e-9, 0.5 + 2e-9, 0.5, 0.5}, 2).empty());
}

TEST_CASE("a directed list is refused unless it mixes") {
  const auto refused = [](const DirectedList& list, int n) { return refusal([&] { list.check(n); }); };
  CHECK(refused(irregular(), 5).empty());
  CHECK(refused({{{}}}, 1).empty());
  CHECK(contains(refused(irregular(), 4), "lists 5 ranks, but there are 4"));
  CHECK(contains(refused({{{1}, {2}}}, 2), "rank 1 sends to rank 2 in this directed graph, but there are 2"));
  CHECK(contains(refused({{{-1}, {0}}}, 2), "rank 0 sends to rank -1"));
  CHECK(contains(refused({{{1}, {1, 0}}}, 2), "rank 1 sends to rank 1"));
  CHECK(contains(refused({{{1, 1}, {0}}}, 2), "rank 0 sends to rank 1 more than once"));
  CHECK(contains(refused({{{1}, {0}, {0}}}, 3), "from rank 0 to rank 2"));
  CHECK(contains(refused({{{1, 2}, {0}, {}}}, 3), "from rank 2 to rank 0"));
  CHECK(contains(refused({}, 0), "at least one rank"));
}

namespace {

/// Mass, the conserved sum, and the mean that is found.
template <class A>
void check_push_sum(const A& adjacency, int size) {
  CAPTURE(terse::type_name<A>());
  CAPTURE(size);
  const PushSum<A> graph(adjacency);
  graph.check(size);
  std::vector<double> z(at(size));
  double mean = 0;
  for (int i = 0; i < size; ++i) mean += (z[at(i)] = i * i - 3.0) / size;
  for (std::uint64_t round = 0; round < 400; ++round) {
    const Weights r = matrix_of(graph, size, round);
    double mass = 0, sum = 0;
    std::vector<double> next(at(size), 0), pushed(at(size), 0);
    std::vector<int> peers;
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < size; ++j) next[at(i)] += r[at(i * size + j)] * z[at(j)];
      mass += graph.weight(i, size, round);
      sum += graph.weight(i, size, round) * z[at(i)];
      CHECK(graph.weight(i, size, round) > 0);
      // What a rank would do: keep a share and hand on the others.
      graph.receivers(i, size, round, peers);
      const double share = graph.weight(i, size, round) / static_cast<double>(peers.size() + 1);
      pushed[at(i)] += share;
      for (const int peer : peers) pushed[at(peer)] += share;
    }
    CHECK(mass == doctest::Approx(size).epsilon(1e-12));
    CHECK(std::abs(sum - mean * size) < 1e-10);
    for (int i = 0; i < size; ++i)
      CHECK(graph.weight(i, size, round + 1) == doctest::Approx(pushed[at(i)]).epsilon(1e-13));
    z = next;
  }
  for (int i = 0; i < size; ++i) CHECK(std::abs(z[at(i)] - mean) < 1e-9);
}

}  // namespace

TEST_CASE("push-sum conserves mass and finds the mean over irregular directed graphs") {
  check_push_sum(irregular(), 5);
  check_push_sum(DirectedList{{{1}, {2}, {0}}}, 3);
  check_push_sum(Star{}, 7);
  check_push_sum(OnePeerExponential{}, 6);
  check_push_sum(RandomMatching{.seed = 8}, 5);
  check_push_sum(DirectedList{{{}}}, 1);
  const PushSum graph{irregular()};
  CHECK(graph.weight(0, 5, 0) == 1);
  // Round 0 by hand: shares are 1/3, 1/2, 1/3, 1/2, 1/4, and rank 0 gets those of 1, 2 and 4.
  CHECK(graph.weight(0, 5, 1) == doctest::Approx(1.0 / 3 + 1.0 / 2 + 1.0 / 3 + 1.0 / 4));
  std::vector<Edge> edges;
  graph.row(0, 5, 0, edges);
  REQUIRE(edges.size() == 3);
  CHECK(edges[0].weight == doctest::Approx(0.5 / (17.0 / 12)));
  CHECK(edges[2].peer == 4);
  CHECK(edges[2].weight == doctest::Approx(0.25 / (17.0 / 12)));
  // On regular graphs the weights stay 1.
  for (const std::uint64_t round : Rounds{1, 2, 3, 10})
    CHECK(PushSum<DirectedExponential>{}.weight(3, 8, round) == doctest::Approx(1));
}

namespace {

/// A star in every fourth round, and silence in between.
struct Rare : adjacency::Star {
  static constexpr bool fixed = false;
  bool sends(int from, int to, int size, std::uint64_t round) const {
    return round % 4 == 3 && adjacency::Star::sends(from, to, size, round);
  }
};

}  // namespace

TEST_CASE("push-sum weights don't depend on the order of questions") {
  const auto check = [](const auto& graph, int size) {
    std::vector<Weights> in_order;
    std::vector<double> weights;
    for (std::uint64_t round = 0; round < 12; ++round) {
      in_order.push_back(matrix_of(graph, size, round));
      weights.push_back(graph.weight(1, size, round));
    }
    for (const std::uint64_t round : Rounds{11, 3, 4, 4, 0, 7, 6, 10, 1}) {
      auto fresh = graph;
      CHECK(matrix_of(graph, size, round) == in_order[round]);
      CHECK(graph.weight(1, size, round) == weights[round]);
      for (const std::uint64_t ahead : Rounds{2, 1, 3, 5})
        CHECK(graph.weight(1, size, (round + ahead) % 12) == weights[(round + ahead) % 12]);
      CHECK(fresh.weight(1, size, round) == weights[round]);
      graph.weight(0, 3, round);  // another size in between
    }
  };
  check(PushSum<Star>{}, 5);
  check(PushSum<RandomMatching>{}, 7);
  check(PushSum<Uniform<adjacency::Mesh>>{}, 6);
  check(PushSum<Rare>{}, 4);
}

TEST_CASE("push-sum resumes late at once where the weights have settled") {
  const PushSum<Star> graph;
  CHECK(graph.weight(0, 5, std::uint64_t{1} << 50) ==
        doctest::Approx(graph.weight(0, 5, 1000)).epsilon(1e-12));
  const PushSum list{irregular()};
  CHECK(list.weight(0, 5, std::uint64_t{1} << 50) == doctest::Approx(list.weight(0, 5, 1000)).epsilon(1e-12));
}

TEST_CASE("rows and receivers allocate nothing where there is room") {
  const auto check = [](const auto& graph, int size) {
    CAPTURE(terse::type_name<std::decay_t<decltype(graph)>>());
    std::vector<Edge> edges;
    std::vector<int> peers;
    edges.reserve(at(size));
    peers.reserve(at(size));
    graph.check(size);
    const std::uint64_t before = allocations;
    for (std::uint64_t round = 0; round < 7; ++round)
      for (int rank = 0; rank < size; ++rank) {
        graph.row(rank, size, round, edges);
        graph.receivers(rank, size, round, peers);
        if constexpr (Traits<std::decay_t<decltype(graph)>>::push_sum) graph.weight(rank, size, round + 1);
      }
    CHECK(allocations == before);
  };
  for (const int size : {1, 2, 8}) {
    check(Ring{}, size);
    check(Mesh{}, size);
    check(Torus{}, size);
    check(Star{}, size);
    check(Lazy<Complete>{}, size);
    check(Hypercube{}, size);
    check(DirectedExponential{}, size);
    check(SymmetricExponential{}, size);
    check(OnePeerExponential{}, size);
    check(OnePeerHypercube{}, size);
    check(RandomMatching{}, size);
    check(ErdosRenyi{.probability = 1}, size);
    check(SymmetricMatrix{matrix_of(Ring{}, size, 0)}, size);
    check(PushSum<Star>{}, size);
    check(PushSum<OnePeerExponential>{}, size);
  }
  check(PushSum{irregular()}, 5);
}

namespace {

template <class G>
std::vector<std::pair<std::string, double>> settings_of(const G& graph) {
  std::vector<std::pair<std::string, double>> all;
  visit_settings(graph, [&](const char* name, double value) { all.emplace_back(name, value); });
  return all;
}

}  // namespace

TEST_CASE("ranks with different parameters are told apart") {
  CHECK(settings_of(Ring{}).empty());
  CHECK(settings_of(RandomMatching{.seed = 7}).size() == 2);
  const std::uint64_t large = std::uint64_t{1} << 60;
  CHECK(settings_of(RandomMatching{large}) != settings_of(RandomMatching{large + 1}));
  CHECK(settings_of(RandomMatching{7}) == settings_of(Unchecked<Lazy<RandomMatching>>{{{7}}}));
  CHECK(settings_of(ErdosRenyi{0.5, 1}) != settings_of(ErdosRenyi{0.6, 1}));
  CHECK(settings_of(ErdosRenyi{0.5, 1}) != settings_of(ErdosRenyi{0.5, 2}));
  const SymmetricMatrix one{{0.5, 0.5, 0.5, 0.5}}, other{{0.75, 0.25, 0.25, 0.75}};
  CHECK(settings_of(one) == settings_of(SymmetricMatrix{one}));
  CHECK(settings_of(one) != settings_of(other));
  CHECK(settings_of(PushSum{irregular()}) == settings_of(irregular()));
  CHECK(settings_of(DirectedList{{{1}, {}}}) != settings_of(DirectedList{{{}, {1}}}));
}

namespace {

/// A ring of 4 with one fault.
enum class Fault {
  none,
  order,
  itself,
  outside,
  weight,
  sum,
  receivers,
  symmetric,
  doubly_stochastic,
  regular,
  fixed
};

template <bool above>
struct Faulty {
  Fault fault;
  static constexpr bool fixed = true, symmetric = true, doubly_stochastic = true, regular = true;
  static constexpr bool spectrum_above_minus_third = above;
  void check(int) const {}
  void row(int rank, int size, std::uint64_t round, std::vector<Edge>& edges) const {
    Ring{}.row(rank, size, round, edges);
    if (!above)
      for (Edge& edge : edges) edge.weight = 0.25;
    if (fault == Fault::fixed && round == 2)
      for (Edge& edge : edges) edge.weight = 0.125;
    if (rank != 1) return;
    if (fault == Fault::order) std::swap(edges[0], edges[1]);
    if (fault == Fault::itself) edges[1].peer = 1;
    if (fault == Fault::outside) edges[1].peer = 4;
    if (fault == Fault::weight) edges[0].weight = 0;
    if (fault == Fault::sum) edges[0].weight = 0.9;
    if (fault == Fault::symmetric) edges[0].weight = 0.5;
    if (fault == Fault::regular) edges.pop_back();
  }
  void receivers(int rank, int size, std::uint64_t round, std::vector<int>& peers) const {
    Ring{}.receivers(rank, size, round, peers);
    if (fault == Fault::receivers && rank == 3) peers[0] = 1;
    if (fault == Fault::regular && rank == 2) peers.erase(peers.begin());
  }
};

/// Rank 0 hands over more than it has.
struct Drifting : Uniform<adjacency::Star> {
  static constexpr bool doubly_stochastic = true;
};

}  // namespace

TEST_CASE("verify finds what a graph of one's own gets wrong") {
  const auto found = [](Fault fault) { return refusal([&] { verify(Faulty<false>{fault}, 4, 3); }); };
  CHECK(found(Fault::none).empty());
  CHECK(contains(found(Fault::order), "rank 0 comes after 2"));
  CHECK(contains(found(Fault::itself), "rank 1's row is not of other ranks"));
  CHECK(contains(found(Fault::outside), "rank 4 comes after 0"));
  CHECK(contains(found(Fault::weight), "rank 1 weighs rank 0 by 0,"));
  CHECK(contains(found(Fault::sum), "rank 1 weighs its peers by 1.15"));
  CHECK(contains(found(Fault::receivers), "rank 3 is in the rows of 0 2, which contradicts receivers()"));
  CHECK(contains(found(Fault::symmetric), "row 0, column 1 is 0.25 and row 1, column 0 is 0.5"));
  CHECK(contains(found(Fault::regular), "declared regular, but in round 0"));
  CHECK(contains(found(Fault::fixed), "declared fixed, but in round 2"));
  CHECK(contains(refusal([] { verify(Drifting{}, 4, 1); }), "column 0 sums to 1.75"));
  // The even ring lies on -1/3 exactly.
  CHECK(contains(refusal([] { verify(Faulty<true>{Fault::none}, 4, 1); }), "spectrum_above_minus_third"));
}

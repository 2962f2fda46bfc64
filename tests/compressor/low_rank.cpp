// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <functional>
#include <limits>

#include "optimizer/support.hpp"
#include "terse/error_feedback/ef21.hpp"
#include "terse/exchange/low_rank_round.hpp"

// LowRank through Exchange, against PowerSGD's equations in double.

using namespace terse;
using namespace terse::test;

namespace {

struct Read {
  const float* from;
  float operator()(const Piece&, index_t i) const { return from[i]; }
};
struct Write {
  float* to;
  void operator()(const Piece&, index_t i, float mean) const { to[i] = mean; }
};

/// What one rank has after one step.
struct After {
  Floats mean;
  std::map<std::string, std::vector<double>> state;
  int culprit = -1;
  double norm = 0;
};
using Runs = std::vector<std::vector<After>>;  // [step][rank]; step 0 is before the first
using Gradients = std::function<Floats(int rank, std::uint64_t step)>;

template <class C, class F, class P, class T = Threads>
struct Runner {
  using X = Exchange<C, F, P, executor::host>;
  C compressor{};
  F feedback{};
  const Layout& layout;
  Gradients gradients;
  std::uint64_t steps = 1;
  NonFinite on_non_finite = NonFinite::throw_;
  const std::uint64_t* mask = nullptr;
  Traffic traffic{};  // of all ranks, construction left out

  Runs operator()(int ranks) {
    Runs runs(steps + 1, std::vector<After>(at(ranks)));
    std::vector<std::uint64_t> bytes(at(ranks));
    ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& end) {
      if constexpr (std::is_same_v<T, Threads>) {
        work(end, runs);
      } else {
        T metered(end.split(0, end.rank()));
        bytes[at(end.rank())] = work(metered, runs);
      }
    });
    for (const std::uint64_t sent : bytes) traffic.by_phase[0].bytes_sent += sent;
    return runs;
  }

 private:
  std::uint64_t work(T& transport, Runs& runs) {
    Channel channel(transport);
    X exchange(executor::host{}, channel, layout, layout.range(), compressor, feedback);
    show(exchange, runs[0][at(transport.rank())]);
    const std::uint64_t before = sent(transport);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      After& after = runs[step][at(transport.rank())];
      after.mean.assign(at(layout.size()), -77.0F);
      const Floats g = gradients(transport.rank(), step);
      try {
        exchange.mix({.step = step, .on_non_finite = on_non_finite}, {mask},
                     Message{Read{g.data()}, Read{g.data()}},
                     Message{Write{after.mean.data()}, Write{after.mean.data()}});
      } catch (const non_finite_error& failure) {
        after.culprit = failure.culprit();
      }
      if constexpr (!C::lossless) after.norm = exchange.mean_norm();
      show(exchange, after);
    }
    return sent(transport) - before;
  }
  static std::uint64_t sent(T& transport) {
    if constexpr (requires { transport.traffic(); }) return transport.traffic().bytes_sent();
    return 0;
  }
  static void show(X& exchange, After& after) {
    Seen seen;
    exchange.walk(seen);
    after.state = seen.parts;
  }
};

Layout zoo() {
  Layout layout;
  layout.add({"square", {64, 48}});
  layout.add({"bias", {48}});
  layout.add({"flat", {7, 130}});
  layout.add({"excluded", {40, 40}, 1, 1, false});
  layout.add({"empty", {0, 5}});
  layout.add({"conv", {8, 3, 5, 5}});
  layout.add({"one", {1}});
  layout.add({"twin", {64, 48}});
  return layout;
}
Gradients ordinary(const Layout& layout) {
  return [&layout](int rank, std::uint64_t step) { return gradient(layout, rank, step, 1); };
}

struct Matrix {
  std::size_t offset, rows, columns;
};
template <class C>
std::vector<Matrix> matrices(const C& compressor, const Layout& layout) {
  std::vector<Matrix> found;
  for (const Segment& s : layout.segments())
    if (s.compress && compressor.takes(s))
      found.push_back({at(s.offset), at(s.shape[0]), at(s.count / s.shape[0])});
  return found;
}

/// PowerSGD as it is written, one matrix after the other, in double.
template <int R>
struct Oracle {
  using Doubles = std::vector<double>;
  std::vector<Matrix> list;
  std::vector<Doubles> q;       // [matrix], column after column without padding
  std::vector<Doubles> errors;  // [rank], the whole arena
  Doubles mean;

  Oracle(std::vector<Matrix> list_, const Layout& layout, int ranks, const Doubles& first_q)
      : list(std::move(list_)), errors(at(ranks), Doubles(at(layout.size()))), mean(at(layout.size())) {
    std::size_t begin = 0;
    for (const Matrix& m : list) {
      Doubles& own = q.emplace_back();
      for (int r = 0; r < R; ++r, begin += at(aligned(static_cast<index_t>(m.columns))))
        for (std::size_t c = 0; c < m.columns; ++c) own.push_back(first_q[begin + c]);
    }
  }

  void step(const std::vector<Floats>& gradients) {
    const double ranks = static_cast<double>(gradients.size());
    for (std::size_t k = 0; k < mean.size(); ++k) {
      mean[k] = 0;
      for (const Floats& g : gradients) mean[k] += static_cast<double>(g[k]) / ranks;
    }
    for (std::size_t k = 0; k < list.size(); ++k) {
      const auto [offset, rows, columns] = list[k];
      const auto m = [&, offset = offset, columns = columns](std::size_t rank, std::size_t a, std::size_t b) {
        const std::size_t i = offset + a * columns + b;
        return static_cast<double>(gradients[rank][i]) + errors[rank][i];
      };
      Doubles p(rows * R), next(columns * R);
      for (std::size_t rank = 0; rank < gradients.size(); ++rank)
        for (std::size_t r = 0; r < R; ++r)
          for (std::size_t a = 0; a < rows; ++a)
            for (std::size_t b = 0; b < columns; ++b)
              p[r * rows + a] += m(rank, a, b) * q[k][r * columns + b] / ranks;
      gram_schmidt(p, rows);
      for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
        Doubles own(columns * R);
        for (std::size_t r = 0; r < R; ++r)
          for (std::size_t a = 0; a < rows; ++a)
            for (std::size_t b = 0; b < columns; ++b) own[r * columns + b] += m(rank, a, b) * p[r * rows + a];
        for (std::size_t a = 0; a < rows; ++a)
          for (std::size_t b = 0; b < columns; ++b)
            errors[rank][offset + a * columns + b] = m(rank, a, b) - entry(p, rows, a, own, columns, b);
        for (std::size_t i = 0; i < own.size(); ++i) next[i] += own[i] / ranks;
      }
      q[k] = next;
      for (std::size_t a = 0; a < rows; ++a)
        for (std::size_t b = 0; b < columns; ++b)
          mean[offset + a * columns + b] = entry(p, rows, a, next, columns, b);
    }
  }

 private:
  static double entry(const Doubles& p, std::size_t rows, std::size_t a, const Doubles& q,
                      std::size_t columns, std::size_t b) {
    double sum = 0;
    for (std::size_t r = 0; r < R; ++r) sum += p[r * rows + a] * q[r * columns + b];
    return sum;
  }
  static void gram_schmidt(Doubles& p, std::size_t rows) {
    for (std::size_t r = 0; r < R; ++r) {
      for (std::size_t other = 0; other < r; ++other) {
        double along = 0;
        for (std::size_t a = 0; a < rows; ++a) along += p[r * rows + a] * p[other * rows + a];
        for (std::size_t a = 0; a < rows; ++a) p[r * rows + a] -= along * p[other * rows + a];
      }
      double square = 0;
      for (std::size_t a = 0; a < rows; ++a) square += p[r * rows + a] * p[r * rows + a];
      for (std::size_t a = 0; a < rows; ++a) p[r * rows + a] /= std::sqrt(square);
    }
  }
};

template <class A, class B>
double distance(const A& a, const B& b, std::size_t begin, std::size_t count) {
  double difference = 0, size = 0;
  for (std::size_t i = begin; i < begin + count; ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y), size += y * y;
  }
  return std::sqrt(difference / std::max(size, 1e-300));
}
template <class A>
double norm(const A& a) {
  double square = 0;
  for (const auto x : a) square += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(square);
}

template <int R>
void compare(int ranks) {
  CAPTURE(R);
  CAPTURE(ranks);
  const Layout layout = zoo();
  const LowRank<R> compressor{.min_compression = 0.5F};
  Runner<LowRank<R>, Residual, ScatterGather> runner{compressor, {}, layout, ordinary(layout), 6};
  const Runs runs = runner(ranks);
  const std::vector<Matrix> list = matrices(compressor, layout);
  REQUIRE(list.size() == 4);
  Oracle<R> oracle(list, layout, ranks, runs[0][0].state.at("low_rank_q"));
  for (std::uint64_t step = 1; step <= 6; ++step) {
    CAPTURE(step);
    std::vector<Floats> g;
    for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, step, 1));
    oracle.step(g);
    for (int rank = 0; rank < ranks; ++rank) {
      const After& now = runs[step][at(rank)];
      for (const Matrix& m : list) {
        CHECK(distance(now.mean, oracle.mean, m.offset, m.rows * m.columns) < 1e-5);
        CHECK(distance(now.state.at("error"), oracle.errors[at(rank)], m.offset, m.rows * m.columns) < 1e-5);
      }
      CHECK(relative_error(layout, now.mean, oracle.mean,
                           [](const Segment& s) { return !s.compress || s.shape.size() < 2; }) < 1e-6);
      CHECK(now.mean == runs[step][0].mean);
      CHECK(now.state.at("low_rank_q") == runs[step][0].state.at("low_rank_q"));
    }
  }
}

/// The bits of two arenas, where elements are.
bool same_bits(const Layout& layout, const Floats& a, const Floats& b, bool vectors_only) {
  for (const Segment& s : layout.segments())
    if (s.count > 0 && (!vectors_only || !s.compress || s.shape.size() < 2) &&
        std::memcmp(&a[at(s.offset)], &b[at(s.offset)], at(s.count) * sizeof(float)) != 0)
      return false;
  return true;
}

/// u v^T times `scale` in every matrix, other numbers in each.
Floats rank_one(const Layout& layout, const std::vector<Matrix>& list, double scale) {
  Floats g(at(layout.size()));
  for (std::size_t k = 0; k < list.size(); ++k)
    for (std::size_t a = 0; a < list[k].rows; ++a)
      for (std::size_t b = 0; b < list[k].columns; ++b)
        g[list[k].offset + a * list[k].columns + b] =
            static_cast<float>(scale * static_cast<double>(noise(k, 0, 1, static_cast<index_t>(a))) *
                               static_cast<double>(noise(k, 0, 2, static_cast<index_t>(b))));
  return g;
}

}  // namespace

TEST_CASE("LowRank follows the oracle step by step, warm starts included") {
  for (const int ranks : {1, 2, 3, 4}) {
    compare<1>(ranks);
    compare<2>(ranks);
    compare<4>(ranks);
  }
  compare<3>(2);
  compare<5>(2);
}

TEST_CASE("LowRank takes what the factors make smaller") {
  const Layout layout = zoo();
  const auto taken = [&](const auto& compressor) {
    std::string names;
    for (const Segment& s : layout.segments())
      if (s.compress && compressor.takes(s)) names += s.name + " ";
    return names;
  };
  CHECK(taken(LowRank<1>{}) == "square flat conv twin ");
  // 4 (64 + 48) 2 < 64 48, but 4 (7 + 130) 2 > 7 130 and 4 (8 + 75) 2 > 8 75.
  CHECK(taken(LowRank<4>{}) == "square twin ");
  CHECK(taken(LowRank<4>{.min_compression = 8}).empty());
  CHECK_THROWS_AS(LowRank<1>{.min_compression = 0}.check(), usage_error);
  Layout wide;
  wide.add({"m", {2, 2}});
  CHECK_FALSE(LowRank<1>{.min_compression = 1}.takes(wide.segments()[0]));  // 4 of 4: nothing gained
}

TEST_CASE("a matrix of rank one comes back, whatever its scale and its neighbours") {
  const Layout layout = zoo();
  const LowRank<1> compressor{};
  const std::vector<Matrix> list = matrices(compressor, layout);
  for (const double scale : {1.0, 1e-25, 1e15}) {
    CAPTURE(scale);
    Runner<LowRank<1>, Residual, ScatterGather> runner{
        compressor, {}, layout, [&](int, std::uint64_t) { return rank_one(layout, list, scale); }, 3};
    const Runs runs = runner(3);
    const Floats g = rank_one(layout, list, scale);
    for (std::size_t step = 1; step <= 3; ++step)
      for (const Matrix& m : list)
        CHECK(distance(runs[step][0].mean, g, m.offset, m.rows * m.columns) < 1e-5);
  }
}

TEST_CASE("a matrix of rank one comes back through more columns than it needs") {
  const Layout layout = zoo();
  const LowRank<4> compressor{.min_compression = 0.5F};
  const std::vector<Matrix> list = matrices(compressor, layout);
  const Floats g = rank_one(layout, list, 1);
  Runner<LowRank<4>, Residual, ScatterGather> runner{
      compressor, {}, layout, [&](int, std::uint64_t) { return g; }, 3};
  const Runs runs = runner(2);
  for (std::size_t step = 1; step <= 3; ++step)
    for (const Matrix& m : list) CHECK(distance(runs[step][1].mean, g, m.offset, m.rows * m.columns) < 1e-5);
}

TEST_CASE("zeros stay zeros, and a round of them does not end all rounds") {
  const Layout layout = zoo();
  const LowRank<2> compressor{};
  const std::vector<Matrix> list = matrices(compressor, layout);
  const Floats later = rank_one(layout, list, 1);
  Runner<LowRank<2>, Residual, ScatterGather> runner{
      compressor,
      {},
      layout,
      [&](int, std::uint64_t step) { return step < 3 ? Floats(later.size()) : later; },
      3};
  const Runs runs = runner(2);
  for (const After& after : runs[2]) {
    each(
        layout, [](const Segment&) { return true; }, [&](std::size_t i) { CHECK(after.mean[i] == 0); });
    CHECK(norm(after.state.at("error")) == 0);
    CHECK(after.state.at("low_rank_q") == runs[0][0].state.at("low_rank_q"));
  }
  for (const Matrix& m : list) CHECK(distance(runs[3][0].mean, later, m.offset, m.rows * m.columns) < 1e-5);
  // Columns that a round has no use for stay as they came out of the round before.
  Runner<LowRank<2>, Unchecked<NoErrorFeedback>, ScatterGather> paused{
      compressor,
      {},
      layout,
      [&](int rank, std::uint64_t step) {
        return step == 1 ? gradient(layout, rank, 1, 1) : Floats(later.size());
      },
      2};
  const Runs pause = paused(2);
  CHECK(pause[1][0].state.at("low_rank_q") != pause[0][0].state.at("low_rank_q"));
  CHECK(pause[2][1].state.at("low_rank_q") == pause[1][0].state.at("low_rank_q"));
}

TEST_CASE("what is not compressed is the exact mean, bit for bit, and has no residual") {
  const Layout layout = zoo();
  for (const int ranks : {1, 3, 4}) {
    Runner<LowRank<2>, Residual, ScatterGather> ours{{}, {}, layout, ordinary(layout), 3};
    Runner<Dense, NoErrorFeedback, ScatterGather> dense{{}, {}, layout, ordinary(layout), 3};
    const Runs runs = ours(ranks), exact = dense(ranks);
    for (std::size_t step = 1; step <= 3; ++step) {
      const auto vector = [](const Segment& s) { return !s.compress || s.shape.size() < 2; };
      double square = 0;
      each(layout, vector, [&](std::size_t i) {
        square += static_cast<double>(exact[step][0].mean[i]) * static_cast<double>(exact[step][0].mean[i]);
      });
      for (int rank = 0; rank < ranks; ++rank) {
        const After& now = runs[step][at(rank)];
        CHECK(same_bits(layout, now.mean, exact[step][0].mean, true));
        CHECK_FALSE(same_bits(layout, now.mean, exact[step][0].mean, false));
        CHECK(now.norm == doctest::Approx(std::sqrt(square)));
        std::size_t kept = 0;
        each(layout, vector, [&](std::size_t i) {
          kept += i < now.state.at("error").size() && now.state.at("error")[i] != 0;
        });
        CHECK(kept == 0);
      }
    }
  }
}

// Against the global reconstruction, e_i = M_i - P Q^T, the error would keep all of g_i - mean g and grow in
// proportion to the steps. The matrix is a wide one: see low-rank.md for what constant data do to a tall one.
TEST_CASE("the error stays bounded though every rank has data of its own") {
  Layout layout;
  layout.add({"m", {12, 16}});
  const auto constant = [&](int rank, std::uint64_t) { return gradient(layout, rank, 7, 1); };
  Runner<LowRank<2>, Residual, ScatterGather> runner{{.min_compression = 1}, {}, layout, constant, 500};
  const Runs runs = runner(3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    double early = 0, late = 0;
    for (std::size_t step = 100; step < 200; ++step)
      early = std::max(early, norm(runs[step][rank].state.at("error")));
    for (std::size_t step = 400; step <= 500; ++step)
      late = std::max(late, norm(runs[step][rank].state.at("error")));
    CHECK(late < 1.2 * early);
  }
  // And nothing of the mean is lost: what was sent in 500 steps is 500 means but for the errors.
  std::vector<double> sum(192), truth(192);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    for (std::size_t step = 1; step <= 500; ++step) sum[i] += static_cast<double>(runs[step][0].mean[i]);
    for (int rank = 0; rank < 3; ++rank)
      truth[i] +=
          500 * static_cast<double>(constant(rank, 1)[i]) / 3 - runs[500][at(rank)].state.at("error")[i] / 3;
  }
  CHECK(distance(sum, truth, 0, sum.size()) < 1e-5);
}

TEST_CASE("bytes on the wire are those of the formula") {
  const Layout layout = zoo();
  const LowRank<2> compressor{};
  std::uint64_t payload = 0;
  const auto padded = [](index_t floats) { return static_cast<std::uint64_t>((4 * floats + 7) / 8 * 8); };
  for (const Segment& s : layout.segments())
    if (s.compress && compressor.takes(s))
      payload += 2 * (padded(s.shape[0]) + padded(s.count / s.shape[0]));
    else
      payload += padded(s.count);
  for (const std::uint64_t ranks : {1U, 2U, 3U, 4U}) {
    Runner<LowRank<2>, Residual, ScatterGather, Metered<Threads>> runner{
        compressor, {}, layout, ordinary(layout), 2};
    runner(static_cast<int>(ranks));
    CHECK(runner.traffic.bytes_sent() == 2 * 2 * (ranks - 1) * (payload + 2 * 32 * ranks));
  }
}

TEST_CASE("NaN on one rank is named everywhere and enters nothing") {
  const Layout layout = zoo();
  for (const std::size_t where : {at(layout.segments()[0].offset) + 5, at(layout.segments()[1].offset) + 5}) {
    const auto spoilt = [&](float with) {
      return [&, with](int rank, std::uint64_t step) {
        Floats g = gradient(layout, rank, step, 1);
        if (rank == 1 && step == 2) g[where] = with;
        return g;
      };
    };
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    Runner<LowRank<2>, Residual, ScatterGather> runner{{}, {}, layout, spoilt(nan), 4};
    const Runs runs = runner(3);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK(runs[1][rank].culprit == -1);
      CHECK(runs[2][rank].culprit == 1);
      CHECK(runs[2][rank].mean == Floats(at(layout.size()), -77.0F));
      CHECK(runs[2][rank].state.at("low_rank_q") == runs[1][rank].state.at("low_rank_q"));
      CHECK(runs[4][rank].culprit == -1);
      CHECK(std::isfinite(norm(runs[4][rank].mean)));
      CHECK(std::isfinite(norm(runs[4][rank].state.at("error"))));
      CHECK(runs[4][rank].mean == runs[4][0].mean);
    }
    // Under `zero` it counts as 0.
    Runner<LowRank<2>, Residual, ScatterGather> zeroing{{}, {}, layout, spoilt(nan), 4, NonFinite::zero};
    Runner<LowRank<2>, Residual, ScatterGather> zeroed{{}, {}, layout, spoilt(0), 4};
    const Runs a = zeroing(3), b = zeroed(3);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK(a[4][rank].mean == b[4][rank].mean);
      CHECK(a[4][rank].state.at("error") == b[4][rank].state.at("error"));
    }
  }
}

TEST_CASE("the same seed gives the same bits, another one other factors; masked elements stay out") {
  const Layout layout = zoo();
  Runner<LowRank<2>, Residual, ScatterGather> first{{}, {}, layout, ordinary(layout), 5};
  Runner<LowRank<2>, Residual, ScatterGather> other{{.seed = 1}, {}, layout, ordinary(layout), 5};
  const Runs a = first(3), b = first(3), c = other(3);
  CHECK(same_bits(layout, a[5][2].mean, b[5][0].mean, false));
  CHECK(a[5][1].state == b[5][1].state);
  CHECK_FALSE(same_bits(layout, a[1][0].mean, c[1][0].mean, false));
  const std::vector<double>& q = a[0][0].state.at("low_rank_q");
  CHECK(*std::max_element(q.begin(), q.end()) < 1);

  std::vector<std::uint64_t> words(at(layout.size() / 64), 0xF0F0F0F0F0F0FF0FU);
  Runner<LowRank<2>, Residual, ScatterGather> masked{{}, {}, layout, ordinary(layout), 3};
  masked.mask = words.data();
  const Runs d = masked(2);
  for (const Matrix& m : matrices(LowRank<2>{}, layout))
    for (std::size_t i = m.offset; i < m.offset + m.rows * m.columns; ++i)
      if ((words[i / 64] >> (i % 64) & 1U) == 0) {
        CHECK(d[3][0].mean[i] == 0);
        CHECK(d[3][1].state.at("error")[i] == 0);
      }
}

TEST_CASE("other topologies and feedbacks") {
  const Layout layout = zoo();
  // Exact ones all take the same means.
  Runner<LowRank<2>, Residual, ScatterGather> two_stages{{}, {}, layout, ordinary(layout), 3};
  Runner<LowRank<2>, Residual, Ring> ring{{}, {}, layout, ordinary(layout), 3};
  // A ring adds up in another order, and the basis of what is left over feels that.
  const auto straight = two_stages(3)[3][0].mean, around = ring(3)[3][0].mean;
  REQUIRE(straight.size() == around.size());
  double largest = 0, apart = 0;
  for (std::size_t i = 0; i < straight.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(straight[i])));
    apart = std::max(apart, std::abs(static_cast<double>(straight[i]) - static_cast<double>(around[i])));
  }
  CHECK(largest > 0);
  CHECK(apart < 1e-4 * largest);
  // Alone is what one rank does.
  Runner<LowRank<2>, Residual, Alone> alone{{}, {}, layout, ordinary(layout), 3};
  CHECK(alone(2)[3][0].mean == two_stages(1)[3][0].mean);
  // Without feedback each step stands for itself.
  Runner<LowRank<2>, Unchecked<NoErrorFeedback>, ScatterGather> forgetful{
      {}, {}, layout, ordinary(layout), 1};
  CHECK(forgetful(3)[1][0].mean == two_stages(3)[1][0].mean);
  Runner<Unchecked<LowRank<2>>, NoErrorFeedback, ScatterGather> unchecked{
      {}, {}, layout, ordinary(layout), 1};
  CHECK(unchecked(3)[1][0].mean == two_stages(3)[1][0].mean);
  // Differences of a constant vanish.
  Layout small;
  small.add({"m", {16, 12}});
  const auto constant = [&](int rank, std::uint64_t) { return gradient(small, rank, 7, 1); };
  Unchecked<LowRank<2>> daring;
  daring.min_compression = 1;
  Runner<Unchecked<LowRank<2>>, Ef21, AllGather> difference{daring, {}, small, constant, 60};
  Runner<Dense, NoErrorFeedback, ScatterGather> dense{{}, {}, small, constant, 1};
  CHECK(distance(difference(3)[60][0].mean, dense(3)[1][0].mean, 0, 192) < 1e-4);
}

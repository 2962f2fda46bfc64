// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "support.hpp"
#include "terse/optimizer/e_control.hpp"
#include "terse/optimizer/ef21_sgd.hpp"

// EControl and EF21-SGDM, line by line as their papers have them, in double; and what they become where eta is 0 or 1, and
// where nothing is lost.

using namespace terse;
using namespace terse::test;

namespace {

constexpr std::uint64_t steps = 24;
constexpr double some = 0.2;

Layout layers() {
  Layout layout;
  layout.add({"w", {200}}).add({"exact", {65}, 2, 0.5F, false}).add({"u", {9, 7}, 0.5F}).add({"one", {1}});
  return layout;
}

bool any_one(const Segment&) { return true; }
bool compressed_one(const Segment& segment) { return segment.compress; }

struct Wavy {
  static float rate(std::uint64_t step) { return 0.02F * (1 + 0.5F * std::sin(static_cast<float>(step))); }
  template <class R>
  void operator()(R& recipe, std::uint64_t step) const {
    recipe.learning_rate = rate(step);
  }
};

/// Both methods at once: v_i <- (1 - smooth) v_i + smooth g_i; c_i = C(control e_i + v_i - h_i);
/// e_i <- e_i + v_i - h_i - c_i; h_i <- h_i + c_i; h <- h + mean c_i; x <- x - rate (h + decay x). The first step takes
/// h_i = g_i and h = mean g_i. What the library has sent, c_i, is the change of its h_i: here it must be y_i, at the places
/// that are largest, and 0 elsewhere.
struct Paper {
  double smooth, control, decay;
  std::vector<std::vector<double>> v, e, own;
  std::vector<double> h, x;

  Paper(double smooth_, double control_, double decay_, const Layout& layout, std::size_t ranks)
      : smooth(smooth_),
        control(control_),
        decay(decay_),
        v(ranks, std::vector<double>(at(layout.size()))),
        e(v),
        own(v),
        h(v[0]),
        x(h) {
    const Floats begin = start(layout);
    x.assign(begin.begin(), begin.end());
  }

  void step(const Layout& layout, std::uint64_t number, const std::vector<Snapshot>* before,
            const std::vector<Snapshot>& now) {
    const auto ranks = own.size();
    std::vector<Floats> g;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      g.push_back(gradient(layout, static_cast<int>(rank), number, 10));
    const double share = number == 1 ? 1 : smooth;
    const auto mean_gradient = [&](std::size_t k) {
      double sum = 0;
      for (const Floats& one : g) sum += static_cast<double>(one[k]);
      return sum / static_cast<double>(ranks);
    };
    for (const Segment& segment : layout.segments()) {
      const std::size_t begin = at(segment.offset), end = begin + at(segment.count);
      const bool exact = number == 1 || !segment.compress;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        std::vector<double> own_before, own_now;
        if (!exact) {
          own_before = spread_out(layout, (*before)[rank].state, "own_copy");
          own_now = spread_out(layout, now[rank].state, "own_copy");
        }
        double least_sent = 1e300, most_kept = 0;
        std::size_t sent = 0;
        for (std::size_t k = begin; k < end; ++k) {
          const double mine = exact ? mean_gradient(k) : static_cast<double>(g[rank][k]);
          v[rank][k] = (1 - share) * v[rank][k] + share * mine;
          if (exact) {
            own[rank][k] = number == 1 ? static_cast<double>(g[rank][k]) : v[rank][k];
            continue;
          }
          const double ahead = v[rank][k] - own[rank][k], y = control * e[rank][k] + ahead;
          const double c = own_now[k] == own_before[k] ? 0 : y;
          if (c != 0) {
            ++sent;
            least_sent = std::min(least_sent, std::abs(y));
            CHECK(own_now[k] - own_before[k] == doctest::Approx(c).epsilon(1e-4));
          } else {
            most_kept = std::max(most_kept, std::abs(y));
          }
          e[rank][k] += ahead - c;
          own[rank][k] += c;
        }
        if (!exact)
          CHECK(sent <= at(static_cast<index_t>(std::ceil(some * static_cast<double>(end - begin)))));
        if (!exact) CHECK(most_kept <= least_sent + 1e-5);
      }
      for (std::size_t k = begin; k < end; ++k) {
        h[k] = 0;
        for (const auto& one : exact ? v : own) h[k] += one[k] / static_cast<double>(ranks);
        const double rate =
            static_cast<double>(Wavy::rate(number)) * static_cast<double>(segment.learning_rate_scale);
        x[k] -= rate * (h[k] + decay * static_cast<double>(segment.weight_decay) * x[k]);
      }
    }
  }
};

/// Whether the library's parameters, copies, errors and averages are the paper's, after every step on every rank.
template <class R>
void follows_paper(const R& recipe, double smooth, double control, int ranks) {
  CAPTURE(type_name<R>());
  CAPTURE(ranks);
  const Layout layout = layers();
  const History ours = run(recipe, layout, ranks, steps, 10, {}, Wavy{});
  Paper paper(smooth, control, static_cast<double>(recipe.weight_decay), layout, at(ranks));
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    const std::vector<Snapshot>& now = ours[step - 1];
    paper.step(layout, step, step == 1 ? nullptr : &ours[step - 2], now);
    const auto part = [&](std::size_t rank, const char* name) {
      return spread_out(layout, now[rank].state, name);
    };
    for (std::size_t rank = 0; rank < at(ranks); ++rank) {
      CHECK(now[rank].parameters == now[0].parameters);
      CHECK(part(rank, "mean_copy") == part(0, "mean_copy"));
      CHECK(relative_error(layout, part(rank, "own_copy"), paper.own[rank], compressed_one) < 2e-6);
      if (now[rank].state.parts.count("error") != 0)
        CHECK(relative_error(layout, part(rank, "error"), paper.e[rank], compressed_one, 1) < 1e-5);
      if (now[rank].state.parts.count("momentum") != 0)
        CHECK(relative_error(layout, part(rank, "momentum"), paper.v[rank], any_one, 1) < 1e-6);
    }
    // h is the mean of all h_i, to rounding.
    CHECK(relative_error(layout, part(0, "mean_copy"), paper.h, compressed_one, 1) < 2e-6);
    CHECK(relative_error(layout, now[0].parameters, paper.x, any_one) < 2e-6);
  }
  CHECK(relative_error(layout, ours.back()[0].parameters, start(layout), any_one) > 0.1);
}

template <class A, class B>
bool equal_runs(const A& a, const B& b, int ranks) {
  const Layout layout = layers();
  const History one = run(a, layout, ranks, steps, 10, {}, Wavy{});
  const History other = run(b, layout, ranks, steps, 10, {}, Wavy{});
  bool equal = true;
  for (std::size_t step = 0; step < steps; ++step)
    for (std::size_t rank = 0; rank < at(ranks); ++rank) {
      equal = equal && one[step][rank].parameters == other[step][rank].parameters;
      for (const char* part : {"own_copy", "mean_copy"})
        equal = equal && one[step][rank].state.parts.at(part) == other[step][rank].state.parts.at(part);
    }
  return equal;
}

const TopK<> fifth{.selection = {.ratio = some}}, all{.selection = {.ratio = 1}};

}  // namespace

TEST_CASE("EControl and EF21-SGDM follow their papers") {
  for (const int ranks : {1, 4}) {
    follows_paper(EControl<>{.weight_decay = 0.1F, .compressor = fifth, .error_feedback = {.eta = 0.25F}}, 1,
                  0.25, ranks);
    follows_paper(
        Ef21Sgdm<>{.weight_decay = 0.1F, .momentum_correction = {.eta = 0.25F}, .compressor = fifth}, 0.25, 0,
        ranks);
  }
  // Both at once.
  using Both = EControl<SmoothedGradient>;
  follows_paper(
      Both{.momentum_correction = {.eta = 0.5F}, .compressor = fifth, .error_feedback = {.eta = 0.125F}}, 0.5,
      0.125, 3);
}

TEST_CASE("without memory EF21-SGDM is EF21, and without errors EControl is, to the bit") {
  const Ef21Sgd<> plain{.compressor = fifth};
  const Ef21Sgdm<> forgets{.momentum_correction = {.eta = 1}, .compressor = fifth};
  const EControl<> ignores{.compressor = fifth, .error_feedback = {.eta = 0}};
  for (const int ranks : {1, 3}) {
    CHECK(equal_runs(forgets, plain, ranks));
    CHECK(equal_runs(ignores, plain, ranks));
    CHECK(!equal_runs(EControl<>{.compressor = fifth}, plain, ranks));
    CHECK(!equal_runs(Ef21Sgdm<>{.compressor = fifth}, plain, ranks));
  }
}

TEST_CASE("where nothing is lost EControl is SGD and EF21-SGDM is SGD with an average") {
  const Layout layout = layers();
  for (const int ranks : {1, 3}) {
    const History sgd = run(EControl<>{.compressor = all}, layout, ranks, steps, 10, {}, Wavy{});
    const History smooth = run(Ef21Sgdm<>{.momentum_correction = {.eta = 0.25F}, .compressor = all}, layout,
                               ranks, steps, 10, {}, Wavy{});
    const Floats begin = start(layout);
    std::vector<double> x(begin.begin(), begin.end()), y = x, v(x.size());
    for (std::uint64_t step = 1; step <= steps; ++step) {
      std::vector<Floats> g;
      for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, step, 10));
      for (const Segment& segment : layout.segments())
        for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k) {
          double mean = 0;
          for (const Floats& one : g) mean += static_cast<double>(one[k]) / ranks;
          const double rate =
              static_cast<double>(Wavy::rate(step)) * static_cast<double>(segment.learning_rate_scale);
          v[k] = step == 1 ? mean : 0.75 * v[k] + 0.25 * mean;
          x[k] -= rate * mean;
          y[k] -= rate * v[k];
        }
      CHECK(relative_error(layout, sgd[step - 1][0].parameters, x, any_one) < 2e-6);
      CHECK(relative_error(layout, smooth[step - 1][0].parameters, y, any_one) < 2e-6);
    }
  }
}

TEST_CASE(
    "towards gradients that stay copies come at the compressor's rate, and what is received is their mean") {
  constexpr index_t n = 100;
  const Layout layout = Layout::flat(n);
  const auto copies = [&](const auto& recipe, std::uint64_t count) {
    std::vector<Seen> seen(count);
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout};
      Floats x(at(layout.size()));
      for (std::uint64_t step = 1; step <= count; ++step) {
        // Of the first, exact step it is another one.
        optimizer.step(x, gradient(layout, transport.rank(), step == 1 ? 100 : 200, 0));
        if (transport.rank() == 1) optimizer.walk(seen[step - 1]);
      }
    });
    return seen;
  };
  const Floats wanted = gradient(layout, 1, 200, 0);
  const auto distance = [&](const Seen& seen) {
    double square = 0;
    for (std::size_t k = 0; k < at(n); ++k)
      square += std::pow(seen.parts.at("own_copy")[k] - static_cast<double>(wanted[k]), 2);
    return square;
  };
  const auto shrinks = [&](const auto& recipe) {
    const std::vector<Seen> seen = copies(recipe, 16);
    const double from = distance(seen[0]);
    CHECK(from > 1);
    for (std::size_t t = 0; t < seen.size(); ++t)
      CHECK(distance(seen[t]) <= std::pow(1 - 0.125, static_cast<double>(t)) * from * (1 + 1e-6));
  };
  const TopK<> eighth{.selection = {.ratio = 0.125}};
  shrinks(EControl<>{.learning_rate = 0, .compressor = eighth, .error_feedback = {.eta = 0}});
  shrinks(Ef21Sgdm<>{.learning_rate = 0, .momentum_correction = {.eta = 1}, .compressor = eighth});

  // The copies that were followed add up to the gradients but for the error, which dies away.
  const std::vector<Seen> seen =
      copies(EControl<>{.learning_rate = 0, .compressor = eighth, .error_feedback = {.eta = 0.125F}}, 400);
  for (std::size_t k = 0; k < at(n); ++k) {
    double lacking = 0;
    for (std::size_t t = 1; t < seen.size(); ++t)
      lacking += static_cast<double>(wanted[k]) - seen[t].parts.at("own_copy")[k];
    CHECK(std::abs(lacking - seen.back().parts.at("error")[k]) < 1e-4);
    CHECK(std::abs(lacking) < 1e-3);
  }
}

TEST_CASE("EControl goes on from its state, and refuses an eta that can't work") {
  const Layout layout = layers();
  const EControl<> recipe{.compressor = fifth};
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    std::map<std::string, std::vector<double>> parts;
    std::map<std::string, std::uint64_t> numbers;
    const auto copy = [&](bool save) {
      return [&, save]<class... Rest>(const std::string& name, Rest&&... rest) {
        if constexpr (sizeof...(rest) == 2) {
          const auto part = std::get<0>(std::forward_as_tuple(rest...));
          if (save)
            parts[name].assign(part.begin(), part.end());
          else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(part)>, view<float>>)
            for (std::size_t k = 0; k < parts.at(name).size(); ++k)
              part[static_cast<index_t>(k)] = static_cast<float>(parts.at(name)[k]);
        } else {
          auto& number = std::get<0>(std::tie(rest...));
          if (save)
            numbers[name] = number;
          else
            number = numbers.at(name);
        }
      };
    };
    const auto go_on = [&](auto& optimizer, Floats& x, std::uint64_t from, std::uint64_t to) {
      for (std::uint64_t step = from; step <= to; ++step)
        optimizer.step(x, gradient(layout, transport.rank(), step, 0));
    };
    Optimizer one{recipe, transport, layout}, other{recipe, transport, layout};
    Floats x = start(layout);
    go_on(one, x, 1, 7);
    one.walk(copy(true));
    other.walk(copy(false));
    Floats y = x;
    go_on(one, x, 8, 12);
    go_on(other, y, 8, 12);
    CHECK(x == y);
    for (const float eta : {-0.5F, 1.5F, std::numeric_limits<float>::quiet_NaN()}) {
      EControl<> wrong = recipe;
      wrong.error_feedback.eta = eta;
      CHECK_THROWS_WITH_AS((Optimizer{wrong, transport, layout}),
                           doctest::Contains("ErrorControl's eta must be in [0, 1], not"), usage_error);
      Ef21Sgdm<> average;
      average.momentum_correction.eta = eta;
      CHECK_THROWS_WITH_AS((Optimizer{average, transport, layout}),
                           doctest::Contains("eta must be in (0, 1], not"), usage_error);
    }
  });
}

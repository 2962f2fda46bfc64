// SPDX-License-Identifier: Apache-2.0
#include "guards.inc"
#include "terse/compressor/chain.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/compressor/threshold.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/deep_gradient_compression.hpp"
#include "terse/optimizer/e_control.hpp"
#include "terse/optimizer/ef21_sgd.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/quantized_sgd.hpp"
#include "terse/optimizer/sign_sgd.hpp"

// Guards of the gradient-averaging recipes: non-finite gradients, allocations, and what goes with local momentum.

namespace {

/// Calls f(recipe) for one recipe of each kind; those whose stages differ switch after five steps.
template <class F>
void each_recipe(F f) {
  f(ErrorFeedbackSgd<ScaledSign<MeanAbs>, LocalMomentumBefore>{
      .learning_rate = 1e-2F, .warmup_steps = 5, .error_feedback = {.follows_rate = true}});
  f(ErrorFeedbackSgd<ScaledSign<MeanAbs>, HeavyBall>{.learning_rate = 1e-2F, .warmup_steps = 5});
  f(SignSgd<>{.learning_rate = 1e-3F});
  f(DeepGradientCompression<>{.learning_rate = 1e-2F,
                              .momentum_correction = {.nesterov = true},
                              .compressor = {.selection = {.ratio = 0.05, .warmup_steps = 6}}});
  f(ErrorFeedbackSgd<Chain<Uniform<4>, Strata<false>, Largest>, NoMomentum>{
      .learning_rate = 1e-2F,
      .warmup_steps = 5,
      .compressor = {.selection = {.first = {.ratio = 0.5}, .second = {.ratio = 0.4}}}});
  f(QuantizedSgd<>{.learning_rate = 1e-2F, .warmup_steps = 5});
  f(Ef21Sgd<TopK<>, HeavyBall>{.learning_rate = 1e-2F, .compressor = {.selection = {.ratio = 0.05}}});
}

}  // namespace

TEST_CASE("non-finite gradients are skipped or zeroed by all ranks alike, and never stay") {
  each_recipe([](const auto& recipe) { check_policies(recipe); });
}

TEST_CASE("non-finite gradients throw on every rank in the same step and move nothing") {
  each_recipe([](const auto& recipe) { check_throw(recipe); });
}

TEST_CASE("a step allocates nothing, at any stage") {
  for (const Options& options : {Options{}, Options{.on_non_finite = NonFinite::skip, .clip_norm = 1}})
    each_recipe([&](const auto& recipe) { check_allocations(recipe, options); });
}

TEST_CASE("the start of EF21 may fail and be made up for") {
  const Layout layout = two_kinds();
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Ef21Sgd<TopK<>, HeavyBall> recipe{.compressor = {.selection = {.ratio = 0.05}}};
    Optimizer optimizer{recipe, transport, layout}, other{recipe, transport, layout};
    Floats x = start(layout), y = x, g = gradient(layout, transport.rank(), 1, 1), bad = g;
    if (transport.rank() == 0) bad[3] = not_a_number;
    CHECK_THROWS_AS(optimizer.step(x, bad), non_finite_error);
    CHECK(x == y);
    for (std::uint64_t step = 1; step <= 5; ++step) {
      g = gradient(layout, transport.rank(), step, 1);
      optimizer.step(x, g);
      other.step(y, g);
    }
    CHECK(x == y);
    Seen a, b;
    optimizer.walk(a);
    other.walk(b);
    CHECK(a.parts == b.parts);
  });
}

TEST_CASE("EF21 starts its copies anew after a compressed step that failed") {
  const Layout layout = Layout::flat(64);
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{
        Ef21Sgd<TopK<>, NoMomentum>{.learning_rate = 1, .compressor = {.selection = {.ratio = 0.1}}},
        transport, layout};
    Floats x = start(layout), before;
    const auto step = [&](float mean, bool poisoned = false) {
      Floats g(at(layout.size()), mean + (transport.rank() == 0 ? 0.5F : -0.5F));
      if (poisoned && transport.rank() == 1) g[63] = not_a_number;
      before = x;
      optimizer.step(x, g);
    };
    for (int k = 0; k < 3; ++k) step(1);
    CHECK_THROWS_AS(step(3, true), non_finite_error);
    CHECK(optimizer.full_precision());
    step(3);
    CHECK_FALSE(optimizer.full_precision());
    for (int k = 0; k < 3; ++k) {
      step(3);
      for (std::size_t i = 0; i < x.size(); ++i) CHECK(before[i] - x[i] == doctest::Approx(3).epsilon(1e-6));
    }
  });
}

namespace {

/// Twelve steps; before the sixth one fails on rank 1, and so does the one that would start the copies anew. Parameters and the
/// mean of the copies stay alike on all ranks, to the bit.
template <class R>
void check_replicas_after_failure(const R& recipe, std::size_t index) {
  CAPTURE(type_name<R>());
  constexpr int ranks = 3;
  const Layout layout = two_kinds();
  std::vector<Floats> last(at(ranks));
  std::vector<std::vector<double>> copies(at(ranks));
  std::atomic<int> failed{0};
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= 12; ++step) {
      Floats g = gradient(layout, transport.rank(), step, 1);
      for (int attempt = 0; step == 6 && attempt < 2; ++attempt) {
        Floats bad = g;
        if (transport.rank() == 1) bad[index] = not_a_number;
        try {
          optimizer.step(x, bad);
        } catch (const non_finite_error&) {
          ++failed;
        }
      }
      if (step == 6) {
        optimizer.begin(x, g);
        optimizer.ready(1);
      }
      optimizer.step(x, g);
    }
    Seen seen;
    optimizer.walk(seen);
    last[at(transport.rank())] = x;
    copies[at(transport.rank())] = seen.parts.at("mean_copy");
  });
  CHECK(failed == 2 * ranks);
  for (int rank = 1; rank < ranks; ++rank) {
    CHECK(last[at(rank)] == last[0]);
    CHECK(copies[at(rank)] == copies[0]);
  }
}

}  // namespace

TEST_CASE("momentum before the difference keeps replicas alike after a step that failed") {
  const TopK<> some{.selection = {.ratio = 0.05}};
  for (const std::size_t index : std::initializer_list<std::size_t>{7, 330}) {
    check_replicas_after_failure(Ef21Sgd<LocalMomentumBefore>{.learning_rate = 1e-2F, .compressor = some},
                                 index);
    check_replicas_after_failure(
        Ef21Sgd<LocalMomentumBefore, LarsRates>{.learning_rate = 1e-2F, .compressor = some}, index);
    check_replicas_after_failure(EControl<SmoothedGradient>{.learning_rate = 1e-2F, .compressor = some},
                                 index);
    check_replicas_after_failure(Ef21Sgd<FactorMasking>{.learning_rate = 1e-2F, .compressor = some}, index);
    check_replicas_after_failure(Ef21Sgd<MajorityVote>{.learning_rate = 1e-3F, .compressor = some}, index);
  }
}

namespace {

/// What an optimizer walks, and puts into another one of its kind.
struct Carried {
  std::vector<std::vector<std::byte>> parts;
  std::size_t next = 0;
  bool out = true;

  template <class T>
  void operator()(std::string_view, view<T> elements, index_t) {
    carry(elements.data(), static_cast<std::size_t>(elements.size()) * sizeof(T));
  }
  void operator()(std::string_view, std::uint64_t& number) { carry(&number, sizeof number); }

 private:
  void carry(void* data, std::size_t bytes) {
    if (out) parts.emplace_back(bytes);
    REQUIRE(parts[next].size() == bytes);
    std::byte* const part = parts[next++].data();
    if (bytes > 0) std::memcpy(out ? part : data, out ? data : part, bytes);
  }
};

/// Nine steps, of which the first is exact and the fifth starts the copies anew, after one that failed; from there
/// on gradients are clipped.
template <class R>
void check_going_on(const R& recipe, float clip_norm) {
  CAPTURE(type_name<R>());
  const Layout layout = Layout::flat(64);
  constexpr int ranks = 2;
  constexpr std::uint64_t torn = 5, steps = 9;
  std::vector<double> velocity(ranks * 64), expected(64);
  std::vector<Floats> last(at(ranks));
  const auto gradient_at = [&](int rank, std::uint64_t step, index_t i) { return noise(5, rank, step, i); };
  const auto factor_of = [&](std::uint64_t step) {
    double squares = 0;
    for (int rank = 0; rank < ranks; ++rank)
      for (index_t i = 0; i < 64; ++i)
        squares += std::pow(static_cast<double>(gradient_at(rank, step, i)), 2);
    return step < torn ? 1.0 : std::min(1.0, static_cast<double>(clip_norm) / std::sqrt(squares / ranks));
  };
  for (std::uint64_t step = 1; step <= steps; ++step)
    for (index_t i = 0; i < 64; ++i) {
      double sum = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        double& v = velocity[at(64 * rank + i)];
        // A rank takes up what is finite of the try that fails, which nothing clips.
        if (step == torn && !(rank == 1 && i == 9))
          v = 0.75 * v + static_cast<double>(gradient_at(rank, step, i));
        v = 0.75 * v + factor_of(step) * static_cast<double>(gradient_at(rank, step, i));
        sum += v;
      }
      expected[at(i)] -= 0.125 * sum / ranks;
      // The first step leaves the same momentum on all ranks.
      for (int rank = 0; step == 1 && rank < ranks; ++rank) velocity[at(64 * rank + i)] = sum / ranks;
    }
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout},
        clipping{recipe, transport, layout, {.clip_norm = clip_norm}};
    Floats x(64), g(64);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      for (index_t i = 0; i < 64; ++i) g[at(i)] = gradient_at(transport.rank(), step, i);
      if (step == torn) {
        Floats bad = g;
        if (transport.rank() == 1) bad[9] = not_a_number;
        CHECK_THROWS_AS(optimizer.step(x, bad), non_finite_error);
        Carried state;
        optimizer.walk(state);
        state.out = false;
        state.next = 0;
        clipping.walk(state);
      }
      (step < torn ? optimizer : clipping).step(x, g);
    }
    last[at(transport.rank())] = x;
  });
  for (const Floats& x : last)
    for (std::size_t i = 0; i < 64; ++i)
      CHECK(static_cast<double>(x[i]) == doctest::Approx(expected[i]).epsilon(1e-5));
}

}  // namespace

TEST_CASE("momentum before the difference goes on through the step that starts the copies anew") {
  for (const float clip_norm : std::initializer_list<float>{std::numeric_limits<float>::infinity(), 2})
    check_going_on(Ef21Sgd<LocalMomentumBefore>{.learning_rate = 0.125F,
                                                .momentum_correction = {.momentum = 0.75F, .nesterov = false},
                                                .compressor = {.selection = {.ratio = 1}}},
                   clip_norm);
}

TEST_CASE("EF21 of what loses nothing is gradient descent") {
  const Layout layout = two_kinds();
  ThreadGroup(1).run([&](Threads& transport) {
    Optimizer optimizer{Ef21Sgd<Dense, NoMomentum>{.learning_rate = 1}, transport, layout};
    Floats x = start(layout), expected = x;
    const Floats g = gradient(layout, 0, 1, 1);
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] -= g[i];
    optimizer.step(x, g);
    CHECK(x == expected);
  });
}

namespace {

/// What a second step says after `change` has been made to the recipe.
template <class R, class Change>
std::string after(const R& recipe, Change change) {
  const Layout layout = Layout::flat(1000);
  try {
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout};
      Floats x = start(layout);
      const Floats g = gradient(layout, transport.rank(), 1, 1);
      optimizer.step(x, g);
      change(optimizer.recipe);
      optimizer.step(x, g);
    });
  } catch (const usage_error& failure) {
    return failure.what();
  }
  return {};
}
bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a ratio that would need packets of another size is refused; a threshold may change") {
  using Exactly = ErrorFeedbackSgd<TopK<>, NoMomentum, AllGather>;
  const Exactly recipe{.compressor = {.selection = {.ratio = 0.1}}};
  using Warming = ErrorFeedbackSgd<WarmupTopK<>, NoMomentum, AllGather>;
  const Warming warming{.compressor = {.selection = {.ratio = 0.1, .warmup_steps = 4}}};
  const char* const holds = "ratios hold from construction on";
  for (const double ratio : {0.5, 0.05}) {
    CHECK(says(after(recipe, [&](Exactly& r) { r.compressor.selection.ratio = ratio; }), holds));
    CHECK(says(after(warming, [&](Warming& r) { r.compressor.selection.ratio = ratio; }), holds));
  }
  CHECK(after(recipe, [](Exactly& r) { r.learning_rate /= 2; }).empty());
  using OverThreshold = ErrorFeedbackSgd<Threshold<>, NoMomentum, AllGather>;
  CHECK(after(OverThreshold{.compressor = {.selection = {.threshold = 0.5F, .most_ratio = 1}}},
              [](OverThreshold& r) { r.compressor.selection.threshold = 0.1F; })
            .empty());
}

TEST_CASE("a step refuses what can't work") {
  using Signs = ErrorFeedbackSgd<ScaledSign<MeanAbs>>;
  CHECK(
      says(after(Signs{}, [](Signs& r) { r.learning_rate = not_a_number; }), "learning_rate must be finite"));
  CHECK(says(after(Signs{}, [](Signs& r) { r.weight_decay = -1; }), "weight_decay must be finite"));
}

TEST_CASE("a rate that is all but 0 makes no error infinite") {
  const Layout layout = Layout::flat(64);
  ThreadGroup(1).run([&](Threads& transport) {
    Optimizer optimizer{ErrorFeedbackSgd<ScaledSign<MeanAbs>>{.error_feedback = {.follows_rate = true}},
                        transport, layout};
    Floats x = start(layout);
    for (const float rate : {1e-3F, 1e-42F, 1e-3F}) {
      optimizer.recipe.learning_rate = rate;
      optimizer.step(x, gradient(layout, 0, 1, 1));
      Seen seen;
      optimizer.walk(seen);
      CHECK(all_finite(seen, x));
    }
  });
}

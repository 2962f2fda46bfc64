// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "local_training.hpp"
#include "reference/local.hpp"
#include "reference/mixing.hpp"
#include "restarts.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/adam.hpp"

// Local methods against oracles in double; the equalities between them; what they send.

using namespace terse;
using namespace terse::test;

namespace {

template <class O>
void compare(const History& ours, O& oracle, RateOf rate, double most = tolerance) {
  for (std::uint64_t step = 1; step <= ours.size(); ++step) {
    oracle.step(in_double(rate(step)), Quadratics::gradient<double>);
    const reference::Arenas x = oracle.x();
    double worst = 0;
    for (std::size_t rank = 0; rank < x.size(); ++rank)
      worst =
          std::max(worst, relative_error(odd_sizes(), ours[step - 1][rank].parameters, x[rank], any_one, 1));
    CAPTURE(step);
    REQUIRE(worst < most);
  }
}

struct WithMomentum {
  using Oracle = reference::MomentumSgd<>;
  static constexpr double most = tolerance;
  MomentumSgd<> recipe{.weight_decay = 0.1F};
  Oracle::Options options{.momentum = in_double(0.9F), .weight_decay = in_double(0.1F)};
};
struct WithoutMomentum : WithMomentum {
  WithoutMomentum() {
    recipe.momentum_correction.momentum = 0;
    options.momentum = 0;
  }
};
struct WithAdam {
  using Oracle = reference::Adam<>;
  static constexpr double most = 1e-4;
  Adam<> recipe{.weight_decay = 0.1F};
  Oracle::Options options{
      .beta1 = in_double(0.9F), .beta2 = in_double(0.999F), .weight_decay = in_double(0.1F)};
};

template <class R>
constexpr std::uint64_t buffers_in = std::is_same_v<decltype(R::inner), Adam<>> ? 2 : 1;

/// An outer step's recipe beside its oracle: x and bytes of all ranks in each step; after an outer step all x are the
/// same bits, before it they are not. `outer()` makes the oracle's outer step.
template <class R, class Inner, class MakeOuter>
void compare_with_outer(R recipe, const Inner& inside, MakeOuter outer) {
  using Oracle = reference::LocalTraining<typename Inner::Oracle>;
  CAPTURE(type_name<R>());
  recipe.inner = inside.recipe;
  std::uint64_t turn = 0;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    // Each number of ranks with another schedule; step 20, of rate 0, ends a period of 4 and of 5.
    const std::uint64_t number = turn++;
    recipe.period = std::initializer_list<std::uint64_t>{4, 5, 4, 3, 2}.begin()[number];
    recipe.average_gradients_until = number % 2 == 0 ? 0 : 5;
    const int buffers = static_cast<int>(number + 1) % 3;
    recipe.inner_buffers = static_cast<InnerBuffers>(buffers);
    CAPTURE(ranks);
    const History ours = train(recipe, ranks);
    Oracle oracle(odd_sizes(), at(ranks), inside.options, start(odd_sizes()),
                  {recipe.period, recipe.average_gradients_until, static_cast<reference::Buffers>(buffers)},
                  outer());
    compare(ours, oracle, warm_and_cool, Inner::most);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      CAPTURE(step);
      const bool averages = step <= recipe.average_gradients_until;
      const bool meets = !averages && (step - recipe.average_gradients_until) % recipe.period == 0;
      // The first rate is 0, and so are the last.
      if (averages || meets)
        CHECK(all_alike(ours[step - 1]));
      else if (ranks > 1 && step > 1 && step < 38)
        CHECK_FALSE(all_alike(ours[step - 1]));
      const std::uint64_t rounds = averages ? 1 : !meets ? 0 : buffers == 2 ? 1 + buffers_in<R> : 1;
      for (int rank = 0; rank < ranks; ++rank) {
        const Sent once = one_mean(odd_sizes(), ranks, rank);
        CHECK(sent_in(ours[step - 1][at(rank)]) == Sent{rounds * once.reduced, rounds * once.spread});
      }
    }
  }
}

auto plain_mean() {
  return [] { return std::make_unique<reference::TakeMean>(); };
}
auto slow_momentum(float alpha, float beta, bool follows_jumps) {
  return [=] {
    return std::make_unique<reference::SlowMomentum>(in_double(alpha), in_double(beta), follows_jumps);
  };
}
auto block_momentum(float zeta, float eta, bool nesterov) {
  return
      [=] { return std::make_unique<reference::BlockMomentum>(in_double(zeta), in_double(eta), nesterov); };
}
auto torch_nesterov(float rate, float momentum) {
  return [=] { return std::make_unique<reference::TorchNesterov>(in_double(rate), in_double(momentum)); };
}

using Local = LocalSgd<MomentumSgd<>>;
using LocalAdam = LocalSgd<Adam<>>;
using Slow = SlowMo<MomentumSgd<>>;
using SlowAdam = SlowMo<Adam<>>;
using Classical = Bmuf<MomentumSgd<>, Block::classical>;
using Nesterov = Bmuf<MomentumSgd<>>;
using Outside = DiLoCo<MomentumSgd<>>;
using Overlap = OverlapLocalSgd<MomentumSgd<>>;

}  // namespace

TEST_CASE("Local SGD and post-local SGD follow their equations, whatever becomes of momentum") {
  compare_with_outer(Local{}, WithMomentum{}, plain_mean());
  compare_with_outer(Local{}, WithoutMomentum{}, plain_mean());
  compare_with_outer(LocalAdam{}, WithAdam{}, plain_mean());
}

TEST_CASE("SlowMo follows its equations, through rates of 0 and those that change within a period") {
  for (const bool follows : {true, false}) {
    CAPTURE(follows);
    compare_with_outer(Slow{.outer = {.rate = 0.8F, .momentum = 0.7F, .follows_jumps = follows}},
                       WithMomentum{}, slow_momentum(0.8F, 0.7F, follows));
    compare_with_outer(Slow{.outer = {.follows_jumps = follows}}, WithoutMomentum{},
                       slow_momentum(1, 0.5F, follows));
    compare_with_outer(SlowAdam{.outer = {.momentum = 0.7F, .follows_jumps = follows}}, WithAdam{},
                       slow_momentum(1, 0.7F, follows));
  }
}

TEST_CASE("BMUF and DiLoCo follow their equations") {
  compare_with_outer(Classical{.outer = {.rate = 0.9F, .momentum = 0.6F}}, WithMomentum{},
                     block_momentum(0.9F, 0.6F, false));
  compare_with_outer(Nesterov{.outer = {.rate = 0.9F, .momentum = 0.6F}}, WithMomentum{},
                     block_momentum(0.9F, 0.6F, true));
  compare_with_outer(Outside{}, WithMomentum{}, torch_nesterov(0.7F, 0.9F));
}

namespace {

template <class O, class R, class Inner>
void compare_overlap(R recipe, const Inner& inside, double pullback, double momentum) {
  CAPTURE(type_name<R>());
  recipe.inner = inside.recipe;
  std::uint64_t turn = 0;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    recipe.period = std::initializer_list<std::uint64_t>{3, 1, 4, 5, 2}.begin()[turn++];
    const History ours = train(recipe, ranks);
    O oracle(odd_sizes(), at(ranks), inside.options, start(odd_sizes()));
    oracle.period = recipe.period;
    if constexpr (requires { oracle.pullback; }) {
      oracle.pullback = pullback;
      oracle.momentum = momentum;
      oracle.jumps.keeps = recipe.merge.follows_jumps ? 0 : momentum;
    }
    compare(ours, oracle, warm_and_cool, Inner::most);
    // Looking completes the round under way; otherwise it lands when it is needed.
    const History unseen = train(recipe, ranks, {.looks = false});
    CHECK(gap(ours, unseen) == 0);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      CAPTURE(step);
      CHECK(all_alike(ours[step - 1], "mean"));
      for (int rank = 0; rank < ranks; ++rank) {
        const Sent once = one_mean(odd_sizes(), ranks, rank);
        const bool meets = step % recipe.period == 0;
        CHECK(sent_in(ours[step - 1][at(rank)]) == (meets ? once : Sent{}));
        // A round's first half leaves at once, the second when its first has come in.
        CHECK(unseen[step - 1][at(rank)].reduced == (meets ? once.reduced : 0));
      }
    }
  }
}

}  // namespace

TEST_CASE(
    "Overlap-Local-SGD follows its equations from its first meeting, which takes up the initial anchor") {
  using Oracle = reference::OverlapTraining<reference::MomentumSgd<>>;
  for (const bool follows : {true, false})
    compare_overlap<Oracle>(
        Overlap{.merge = {.pullback = 0.6F, .anchor_momentum = 0.7F, .follows_jumps = follows}},
        WithMomentum{}, in_double(0.6F), in_double(0.7F));
  compare_overlap<Oracle>(Overlap{.merge = {.pullback = 0.3F, .anchor_momentum = 0}}, WithoutMomentum{},
                          in_double(0.3F), 0);
  compare_overlap<reference::OverlapTraining<reference::Adam<>>>(
      OverlapLocalSgd<Adam<>>{.merge = {.pullback = 0.5F, .anchor_momentum = 0.4F}}, WithAdam{}, 0.5,
      in_double(0.4F));
}

TEST_CASE("where rates change gently local methods follow the papers' rule") {
  const auto differ = [](const auto& ours, const auto& papers, RateOf rate) {
    return gap(train(ours, 4, {.rate = rate}), train(papers, 4, {.rate = rate}));
  };
  for (const RateOf rate : {gently, gently_from_0}) {
    CHECK(differ(Slow{.period = 3}, Slow{.period = 3, .outer = {.follows_jumps = true}}, rate) < 1e-6);
    CHECK(differ(Slow{.inner = plain(), .period = 1, .outer = {.momentum = 0.9F}},
                 Slow{.inner = plain(), .period = 1, .outer = {.momentum = 0.9F, .follows_jumps = true}},
                 rate) < 1e-6);
    CHECK(differ(Overlap{.period = 3}, Overlap{.period = 3, .merge = {.follows_jumps = true}}, rate) < 1e-6);
  }
  CHECK(differ(Slow{.period = 3}, Slow{.period = 3, .outer = {.follows_jumps = true}}, warm_and_cool) > 1e-3);
}

TEST_CASE("rates that jump throw no local method off that follows them, but by the papers' rule") {
  check_jumps(Slow{});
  check_jumps(Slow{.outer = {.momentum = 0.7F}});
  check_jumps(SlowAdam{});
  check_jumps(SlowMo<MomentumSgd<>, Uniform<8>, Residual>{});
  check_jumps(Overlap{});
  check_jumps(OverlapLocalSgd<Adam<>>{});
  CHECK(thrown(Slow{.outer = {.follows_jumps = true}}) > 0.6);
  CHECK(thrown(Overlap{.merge = {.follows_jumps = true}}) > 0.6);
}

TEST_CASE("CoCoD-SGD follows its equations") {
  compare_overlap<reference::DelayedAverage<reference::MomentumSgd<>>>(CocodSgd<MomentumSgd<>>{},
                                                                       WithMomentum{}, 0, 0);
}

TEST_CASE("with pull-back alone a mean of parameters and anchor moves by (1 - a) times the mean gradient") {
  constexpr float a = 0.6F;
  const Overlap recipe{.inner = plain(), .period = 4, .merge = {.pullback = a, .anchor_momentum = 0}};
  for (const int ranks : {1, 3, 4}) {
    const Layout layout = odd_sizes();
    const History ours = train(recipe, ranks);
    const auto mean = [&](std::uint64_t step, auto read) {
      std::vector<double> sum(at(layout.size()));
      for (const Snapshot& one : ours[step - 1])
        each(layout, any_one, [&](std::size_t k) {
          sum[k] += static_cast<double>(read(one)[k]) / static_cast<double>(ranks);
        });
      return sum;
    };
    const auto x = [](const Snapshot& one) -> const Floats& { return one.parameters; };
    const auto z = [](const Snapshot& one) -> const auto& { return one.state.parts.at("mean"); };
    const auto g = [](const Snapshot& one) -> const auto& { return one.state.parts.at("gradient"); };
    for (std::uint64_t step = 2; step <= steps; ++step) {
      CAPTURE(step);
      const auto x0 = mean(step - 1, x), z0 = mean(step - 1, z), x1 = mean(step, x), z1 = mean(step, z),
                 gradient = mean(step, g);
      double worst = 0;
      for (const Segment& segment : layout.segments())
        for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k) {
          const double aa = in_double(a), rate = in_double(warm_and_cool(step) * segment.learning_rate_scale);
          const double moved = (1 - aa) * (x1[k] - x0[k]) + aa * (z1[k] - z0[k]);
          worst = std::max(worst, std::abs(moved + (1 - aa) * rate * gradient[k]));
        }
      // A few roundings of numbers around 1.
      CHECK(worst < 5e-7);
    }
  }
}

TEST_CASE("pull-back of 0 leaves ranks alone, and of 1 takes back every step") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const History apart = train(Overlap{.period = 3, .merge = {.pullback = 0}}, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const History alone = train(MomentumSgd<>{}, 1, {.first_rank = rank});
      for (std::size_t step = 0; step < steps; ++step)
        REQUIRE(apart[step][at(rank)].parameters == alone[step][0].parameters);
    }
    const History frozen = train(Overlap{.inner = plain(), .period = 3, .merge = {1, 0}}, ranks);
    for (std::size_t step = 1; step < steps; ++step)
      for (const Snapshot& one : frozen[step]) {
        if ((step + 1) % 3 != 0)
          CHECK((one.parameters != start(odd_sizes()) || step > 36));
        else if (ranks == 3)  // the mean of three equal numbers may be rounded
          CHECK(relative_error(odd_sizes(), one.parameters, start(odd_sizes()), any_one, 1) < 1e-6);
        else
          CHECK(one.parameters == start(odd_sizes()));
      }
  }
}

namespace {

/// Bit by bit what the inner recipe does: with a period of 1, and for as long as gradients are averaged.
template <class Inner>
void check_dense(const Inner& inner) {
  CAPTURE(type_name<Inner>());
  for (const int ranks : {1, 2, 3, 7}) {
    CAPTURE(ranks);
    const Training training{.scale = ranks == 3 ? 0.5F : 1};
    const History dense = train(inner, ranks, training);
    const LocalSgd<Inner> always{.inner = inner, .period = 1};
    CHECK(gap(train(always, ranks, training), dense) == 0);
    const History later =
        train(LocalSgd<Inner>{.inner = inner, .period = 4, .average_gradients_until = 17}, ranks, training);
    for (std::size_t step = 0; step < 21; ++step) {
      CAPTURE(step);
      bool same = true;
      for (std::size_t rank = 0; rank < at(ranks); ++rank)
        same &= later[step][rank].parameters == dense[step][rank].parameters;
      CHECK(same == (step < 17 || ranks == 1));
    }
    CHECK(all_alike(later[20]));
  }
}

}  // namespace

TEST_CASE("Local SGD with a period of 1 and post-local SGD's first phase are the inner recipe, bit by bit") {
  check_dense(MomentumSgd<>{.weight_decay = 0.1F, .momentum_correction = {.nesterov = true}});
  check_dense(Adam<>{.weight_decay = 0.1F});
}

TEST_CASE("outer steps of rate 1 without momentum are Local SGD's") {
  for (const int ranks : {1, 3, 4}) {
    CAPTURE(ranks);
    const History local = train(Local{.period = 4}, ranks);
    CHECK(gap(train(Slow{.period = 4, .outer = {1, 0}}, ranks), local) < 2e-6);
    CHECK(gap(train(Classical{.period = 4, .outer = {1, 0}}, ranks), local) < 2e-6);
    CHECK(gap(train(Nesterov{.period = 4, .outer = {1, 0}}, ranks), local) < 2e-6);
    CHECK(gap(train(Outside{.period = 4, .outer = {1, 0}}, ranks), local) < 2e-6);
    CHECK(gap(train(Slow{.period = 4}, ranks), local) > 1e-3);
    const History adam = train(LocalAdam{.period = 4}, ranks);
    CHECK(gap(train(SlowAdam{.period = 4, .outer = {1, 0}}, ranks), adam) < 2e-5);
  }
}

TEST_CASE("an outer step after every plain step is momentum on the averaged gradient") {
  for (const int ranks : {1, 2, 3, 7}) {
    CAPTURE(ranks);
    const Training training{.rate = up_and_down};
    const History heavy = train(MomentumSgd<>{}, ranks, training);
    CHECK(gap(train(Slow{.inner = plain(), .period = 1, .outer = {1, 0.9F, true}}, ranks, training), heavy) <
          tolerance);
    // BMUF keeps its history as it is when the rate changes.
    CHECK(gap(train(Classical{.inner = plain(), .period = 1, .outer = {1, 0.9F}}, ranks, training), heavy) >
          1e-3);
    const History ahead =
        train(MomentumSgd<>{.momentum_correction = {.nesterov = true}}, ranks, {.rate = steady});
    CHECK(gap(train(Outside{.inner = plain(), .period = 1, .outer = {1, 0.9F}}, ranks, {.rate = steady}),
              ahead) < tolerance);
  }
}

TEST_CASE("BMUF is SlowMo at a constant rate, and DiLoCo with Nesterov's momentum, bit by bit") {
  for (const int ranks : {1, 3, 4}) {
    CAPTURE(ranks);
    const auto both = [&](RateOf rate) {
      return gap(train(Classical{.period = 3, .outer = {0.8F, 0.6F}}, ranks, {.rate = rate}),
                 train(Slow{.period = 3, .outer = {0.8F, 0.6F}}, ranks, {.rate = rate}));
    };
    CHECK(both(steady) == 0);
    CHECK(both(up_and_down) > 1e-3);
    CHECK(gap(train(Nesterov{.period = 3, .outer = {0.8F, 0.6F}}, ranks),
              train(Outside{.period = 3, .outer = {0.8F, 0.6F}}, ranks)) == 0);
    CHECK(gap(train(Nesterov{.period = 3, .outer = {0.8F, 0.6F}}, ranks),
              train(Classical{.period = 3, .outer = {0.8F, 0.6F}}, ranks)) > 1e-3);
  }
}

namespace {

/// After each outer step the two points of its momentum: W(t) = W(t - 1) + D(t) and W(t) + momentum D(t).
template <class R>
void check_read_outs(float momentum) {
  CAPTURE(type_name<R>());
  on_ranks(2, [&](Threads& transport) {
    constexpr std::uint64_t period = 3;
    const Layout layout = odd_sizes();
    Optimizer optimizer{R{.inner = plain(), .period = period, .outer = {0.8F, momentum}}, transport, layout};
    Floats x = start(layout), current(x.size()), ahead(x.size());
    Floats before = x;
    for (std::uint64_t step = 1; step <= 6 * period; ++step) {
      optimizer.learning_rate(0.02F);
      const Floats g = Quadratics::gradient<float>(at(transport.rank()), x);
      optimizer.step(x, g);
      if (step % period != 0) continue;
      optimizer.read_out(ReadOut::current, current);
      optimizer.read_out(ReadOut::look_ahead, ahead);
      CHECK((decltype(R::outer)::nesterov ? ahead : current) == x);
      double worst = 0, moved = 0;
      for (const Segment& segment : layout.segments())
        for (index_t i = segment.offset; i < segment.offset + segment.count; ++i) {
          const double move = in_double(current[at(i)]) - in_double(before[at(i)]);
          const double lead = in_double(ahead[at(i)]) - in_double(current[at(i)]);
          worst = std::max(worst, std::abs(lead - in_double(momentum) * move));
          moved = std::max(moved, std::abs(move));
        }
      CHECK(worst < 1e-6);
      CHECK(moved > 1e-3);
      before = current;
    }
    CHECK_THROWS_AS(optimizer.read_out(ReadOut::current, view<float>(current.data(), 3)), usage_error);
  });
}

}  // namespace

TEST_CASE("the current point and the one ahead can be read, whichever parameters are") {
  check_read_outs<Classical>(0.6F);
  check_read_outs<Nesterov>(0.6F);
}

TEST_CASE("after an outer step inner buffers are each rank's own, nothing, or the same everywhere") {
  for (const InnerBuffers buffers : {InnerBuffers::keep, InnerBuffers::reset, InnerBuffers::average})
    for (const std::uint64_t period : std::initializer_list<std::uint64_t>{1, 4}) {
      CAPTURE(static_cast<int>(buffers));
      CAPTURE(period);
      const auto check = [&](const auto& recipe, std::initializer_list<const char*> names) {
        const History ours = train(recipe, 3);
        for (const std::size_t step : std::initializer_list<std::size_t>{4, 12, 36})
          for (const char* name : names) {
            const std::vector<Snapshot>& now = ours[step - 1];
            double sum = 0;
            for (const double value : now[1].state.parts.at(name)) sum += std::abs(value);
            CHECK((sum == 0) == (buffers == InnerBuffers::reset));
            // With a period of 1, and buffers kept, gradients are averaged instead.
            CHECK(all_alike(now, name) == (buffers != InnerBuffers::keep || period == 1));
          }
      };
      check(Local{.period = period, .inner_buffers = buffers}, {"inner_momentum"});
      check(LocalAdam{.period = period, .inner_buffers = buffers}, {"inner_momentum", "inner_variance"});
    }
}

namespace {

/// SlowMo around gossip: the oracle of gossip, whose ranks meet in each third step.
template <class R, class O, class MatrixOf>
void compare_gossip(const R& recipe, MatrixOf matrix) {
  CAPTURE(type_name<R>());
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    O oracle(odd_sizes(), at(ranks), {.momentum = in_double(0.9F)}, start(odd_sizes()));
    reference::SlowMomentum outer(in_double(recipe.outer.rate), in_double(recipe.outer.momentum));
    outer.start(oracle.x[0]);
    const History ours = train(recipe, ranks);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      CAPTURE(step);
      const double gamma = in_double(warm_and_cool(step));
      oracle.step(matrix(at(ranks), step - 1), gamma, Quadratics::gradient<double>);
      const bool meets = step % recipe.period == 0;
      if (meets) {
        const auto next = outer.step(reference::mean_of(oracle.x), gamma);
        for (auto& x : oracle.x) x = next;
        CHECK(all_alike(ours[step - 1]));
      }
      double worst = 0;
      for (std::size_t rank = 0; rank < at(ranks); ++rank)
        worst = std::max(
            worst, relative_error(odd_sizes(), ours[step - 1][rank].parameters, oracle.x[rank], any_one, 1));
      REQUIRE(worst < tolerance);
    }
  }
}

}  // namespace

TEST_CASE("SlowMo goes around gossip and push-sum") {
  using OverGossip = SlowMo<DmSgd<Mixing<graph::Ring>>, Inside::together>;
  compare_gossip<OverGossip, reference::AdaptThenCombineSgd>(
      {.period = 3, .outer = {.momentum = 0.6F}},
      [](std::size_t n, std::uint64_t) { return reference::ring(n); });
  using OverPush = SlowMo<StochasticGradientPush<graph::OnePeerExponential>, Inside::together>;
  compare_gossip<OverPush, reference::StochasticGradientPushSgd>(
      {.period = 3, .outer = {.momentum = 0.6F}},
      [](std::size_t n, std::uint64_t round) { return reference::one_peer_exponential(n, round); });
}

namespace {

/// Codes of Bits for each element, scales for each segment or, where there are blocks, for each of those.
template <std::uint64_t Bits, std::uint64_t Block>
std::uint64_t section(const Range& range) {
  std::uint64_t codes = 0, scales = 0;
  for (const Piece& piece : range.pieces()) {
    const auto n = static_cast<std::uint64_t>(piece.count);
    codes += Bits < 8 ? (n + 63) / 64 * 8 * Bits : to_eight(n);
    scales += Block == 0 ? 1 : (n + Block - 1) / std::max<std::uint64_t>(Block, 1);
  }
  return to_eight(4 * scales) + codes;
}

bool compressed(const Segment& segment) { return segment.compress; }
bool exact(const Segment& segment) { return !segment.compress; }

/// Moves that are compressed end within `most` of where those that are not do, from a distance of about 1, at a rate
/// that ends at 0. A round of packets at each meeting, and no byte between them.
template <std::uint64_t Bits, std::uint64_t Block, class R, class Exact>
void check_compressed(const R& recipe, const Exact& uncompressed, double most) {
  CAPTURE(type_name<R>());
  const RateOf cooling = [](std::uint64_t step) { return 0.05F * (1 - static_cast<float>(step - 1) / 400); };
  const Layout layout = partly_compressed();
  const Training training{cooling, layout, 401, false};
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const History ours = train(recipe, ranks, training), expected = train(uncompressed, ranks, training);
    for (std::uint64_t step = 1; step <= 401; ++step) {
      CAPTURE(step);
      const bool meets = step % recipe.period == 0;
      if (meets) REQUIRE(all_alike(ours[step - 1]));
      for (int rank = 0; rank < ranks; ++rank)
        REQUIRE(sent_in(ours[step - 1][at(rank)]) ==
                (meets ? formula<ScatterGather>(layout, ranks, rank, section<Bits, Block>) : Sent{}));
    }
    const auto distance = [&](std::size_t step) {
      std::vector<double> apart(at(layout.size()));
      each(layout, compressed, [&](std::size_t k) {
        apart[k] = in_double(ours[step][0].parameters[k]) - in_double(expected[399][0].parameters[k]);
      });
      return rms(layout, apart, compressed);
    };
    CHECK(distance(0) > 0.7);
    CHECK(distance(399) < most);
    // It was compressed, and what was not takes the same way: quadratics don't couple elements.
    CHECK(distance(399) > 1e-6);
    CHECK(relative_error(layout, ours[399][0].parameters, expected[399][0].parameters, exact, 1) < tolerance);
  }
}

/// What compression takes from the mean move is in the two stages' errors, all of it, in every meeting.
template <class R>
void check_conserved(const R& recipe) {
  CAPTURE(type_name<R>());
  const Layout layout = partly_compressed();
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const auto n = static_cast<double>(ranks);
    const History ours = train(recipe, ranks, {.rate = up_and_down, .layout = layout});
    const auto owed = [&](const std::vector<Snapshot>& now) {
      std::vector<double> sum(at(layout.size()));
      for (const Snapshot& one : now) {
        const auto own = spread_out(layout, one.state, "outer_error"),
                   second = spread_out(layout, one.state, "outer_second_error");
        for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += own[k] / n + second[k];
      }
      return sum;
    };
    Floats anchor = start(layout);
    std::vector<double> debt(anchor.size()), velocity(anchor.size());
    for (std::uint64_t step = recipe.period; step <= steps; step += recipe.period) {
      CAPTURE(step);
      const std::vector<Snapshot>&was = ours[step - 2], &is = ours[step - 1];
      const std::vector<double> now = owed(is);
      double worst = 0, most = 0;
      for (const Segment& segment : layout.segments()) {
        if (!segment.compress) continue;
        const double rate = in_double(up_and_down(step) * segment.learning_rate_scale);
        for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k) {
          double moved = 0, mean = in_double(anchor[k]) - in_double(is[0].parameters[k]);
          for (std::size_t rank = 0; rank < was.size(); ++rank)
            moved += (in_double(anchor[k]) - in_double(was[rank].parameters[k]) +
                      rate * is[rank].state.parts.at("gradient")[k]) /
                     n;
          if constexpr (requires { recipe.outer.momentum; }) {
            const double v = is[0].state.parts.at("outer_velocity")[k];
            mean = v - in_double(recipe.outer.momentum) * velocity[k];
            velocity[k] = v;
          }
          worst = std::max(worst, std::abs(mean + now[k] - moved - debt[k]));
          most = std::max(most, std::abs(mean - moved));
        }
      }
      // Roundings of numbers up to 4.
      CHECK(worst < 3e-6);
      CHECK(most > 1e-4);
      debt = now;
      anchor = is[0].parameters;
    }
  }
}

using CompressedOutside = DiLoCo<MomentumSgd<>, Uniform<8>, Residual>;
using SignsOfMoves = LocalSgd<MomentumSgd<>, ScaledSign<MeanAbs, PerBlock<64>>, Residual>;

}  // namespace

TEST_CASE("compressed moves go where exact ones do, and only they travel") {
  check_compressed<8, 0>(CompressedOutside{.inner = plain(), .period = 5},
                         Outside{.inner = plain(), .period = 5}, 1e-3);
  // A scale for 64 elements with one bit each: errors are several moves high.
  check_compressed<1, 64>(SignsOfMoves{.inner = plain(), .period = 5}, Local{.inner = plain(), .period = 5},
                          0.15);
}

TEST_CASE("errors hold all that compression takes from the mean move") {
  check_conserved(CompressedOutside{.inner = plain(), .period = 5});
  check_conserved(SignsOfMoves{.inner = plain(), .period = 5});
}

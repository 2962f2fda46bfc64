// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "local_training.hpp"
#include "reference/streaming.hpp"
#include "terse/compressor/cast.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/adam.hpp"

// Streaming DiLoCo against two oracles in double; what it is equal to; what it sends, and when.

using namespace terse;
using namespace terse::test;

namespace {

using Streamed = StreamingDiLoCo<MomentumSgd<>>;

/// Five layers that fit the quadratics, in four parts of about the same size.
Layout layers() {
  Layout layout;
  layout.add({"a", {5, 40}})
      .add({"b", {130}, 0.5F})
      .add({"c", {1}})
      .add({"d", {190}, 1, 0})
      .add({"e", {200}, 2, 1, false});
  return layout;
}

struct Case {
  int ranks;
  std::uint64_t period, count, delay;
  float local_share;
};
constexpr Case cases[]{{1, 4, 1, 0, 0.5F}, {2, 6, 3, 1, 0.5F}, {3, 8, 4, 3, 0.25F}, {4, 5, 2, 5, 0},
                       {2, 7, 4, 0, 0},    {3, 12, 12, 2, 1},  {7, 3, 5, 1, 0.75F}};

template <class R>
R with(R recipe, const Case& one) {
  recipe.period = one.period;
  recipe.schedule = {.count = one.count, .delay = one.delay};
  recipe.outer.local_share = one.local_share;
  return recipe;
}
reference::Streams streams(const Case& one) {
  return {.period = one.period,
          .delay = one.delay,
          .fragments = one.count,
          .rate = static_cast<double>(0.7F),
          .momentum = static_cast<double>(0.9F),
          .alpha = static_cast<double>(one.local_share)};
}

template <class O>
void compare(const History& ours, O& oracle, const Layout& layout, double most = tolerance) {
  for (std::uint64_t step = 1; step <= ours.size(); ++step) {
    oracle.step(in_double(warm_and_cool(step)), Quadratics::gradient<double>);
    const reference::Arenas x = oracle.x();
    double worst = 0;
    for (std::size_t rank = 0; rank < x.size(); ++rank)
      worst = std::max(worst, relative_error(layout, ours[step - 1][rank].parameters, x[rank], any_one, 1));
    CAPTURE(step);
    REQUIRE(worst < most);
  }
}

template <class Oracle, class Inner>
void follows_algorithm(const Inner& inner, const typename Oracle::Options& options, double most) {
  CAPTURE(type_name<Inner>());
  for (const Layout& layout : {layers(), odd_sizes()})
    for (const Case& one : cases) {
      CAPTURE(one.ranks);
      const auto recipe = with(StreamingDiLoCo<Inner>{.inner = inner}, one);
      const History ours = train(recipe, one.ranks, {.layout = layout});
      reference::StreamingTraining<Oracle> oracle(layout, at(one.ranks), options, start(layout),
                                                  streams(one));
      compare(ours, oracle, layout, most);
      double worst = 0;
      for (const Snapshot& mine : ours.back())
        worst = std::max(
            worst, relative_error(layout, mine.state.parts.at("anchor"), oracle.theta_to_come(), any_one, 1));
      CHECK(worst < most);
      CHECK(all_alike(ours.back(), "anchor"));
      CHECK(all_alike(ours.back(), "outer_velocity"));
      // Looking completes rounds under way; otherwise they land when they are due.
      CHECK(gap(ours, train(recipe, one.ranks, {.layout = layout, .looks = false}), layout) == 0);
    }
}

}  // namespace

TEST_CASE("Streaming DiLoCo follows its algorithm") {
  follows_algorithm<reference::MomentumSgd<>>(MomentumSgd<>{.weight_decay = 0.1F},
                                              {.momentum = in_double(0.9F), .weight_decay = in_double(0.1F)},
                                              tolerance);
  follows_algorithm<reference::Adam<>>(
      Adam<>{.weight_decay = 0.1F},
      {.beta1 = in_double(0.9F), .beta2 = in_double(0.999F), .weight_decay = in_double(0.1F)}, 1e-4);
}

TEST_CASE("around plain steps it is what letters say that take as long as its rounds") {
  for (const Layout& layout : {layers(), odd_sizes()})
    for (const Case& one : cases) {
      CAPTURE(one.ranks);
      const History ours = train(with(Streamed{.inner = plain()}, one), one.ranks, {.layout = layout});
      reference::StreamingLetters oracle(layout, at(one.ranks), start(layout), streams(one));
      compare(ours, oracle, layout);
    }
}

namespace {

/// With one fragment, no delay and no local share.
template <class Streams, class Whole>
void check_whole(Streams recipe, const Whole& whole) {
  CAPTURE(type_name<Streams>());
  recipe.inner = whole.inner;
  recipe.period = whole.period;
  recipe.average_gradients_until = whole.average_gradients_until;
  recipe.schedule = {.count = 1, .delay = 0};
  recipe.outer.local_share = 0;
  for (const int ranks : {1, 3, 4}) {
    CAPTURE(ranks);
    const Training training{.layout = partly_compressed()};
    const History ours = train(recipe, ranks, training), theirs = train(whole, ranks, training);
    CHECK(gap(ours, theirs) == 0);
    for (std::size_t step = 0; step < steps; ++step)
      for (std::size_t rank = 0; rank < at(ranks); ++rank) {
        Seen mine = ours[step][rank].state;
        const Seen& other = theirs[step][rank].state;
        // Checkpoints have one word more, when a round is due.
        mine.parts.erase("outer_due");
        CHECK(mine.parts == other.parts);
        CHECK(sent_in(ours[step][rank]) == sent_in(theirs[step][rank]));
      }
  }
}

}  // namespace

TEST_CASE("a single fragment without delay or local share is DiLoCo, bit by bit, whatever it sends") {
  check_whole(Streamed{}, DiLoCo<MomentumSgd<>>{.period = 3});
  check_whole(StreamingDiLoCo<Adam<>>{}, DiLoCo<Adam<>>{.period = 5, .average_gradients_until = 7});
  check_whole(StreamingDiLoCo<MomentumSgd<>, Uniform<8>, Residual>{},
              DiLoCo<MomentumSgd<>, Uniform<8>, Residual>{.period = 4});
}

TEST_CASE("a delay in which nobody moves is none") {
  const RateOf resting = [](std::uint64_t step) {
    return step % 8 <= 3 && step >= 8 ? 0 : up_and_down(step);
  };
  for (const int ranks : {1, 3}) {
    const Training training{.rate = resting, .layout = odd_sizes(), .count = 43};
    const History at_once = train(DiLoCo<MomentumSgd<>>{.inner = plain(), .period = 8}, ranks, training);
    const History late = train(with(Streamed{.inner = plain()}, {ranks, 8, 1, 3, 0}), ranks, training);
    for (std::size_t step = 10; step < 43; ++step)
      // Steps 8 to 10 hear of step 8's mean in step 11 at the latest.
      if ((step + 1) % 8 >= 3)
        for (std::size_t rank = 0; rank < at(ranks); ++rank)
          CHECK(late[step][rank].parameters == at_once[step][rank].parameters);
    if (ranks > 1) CHECK(late[8][0].parameters != at_once[8][0].parameters);
  }
}

namespace {

/// An outer rule of one's own: late Local SGD.
struct LateMean {
  static constexpr std::array<const char*, 1> state{"anchor"};
  static constexpr int from_start = 1;
  static constexpr bool follows_rate = false, merges_as_it_sends = false;

  template <Number P>
  struct HowFar {
    ParameterRef<P> x;
    const float* anchor;
    float operator()(const Piece&, index_t i) const { return anchor[i] - x[i]; }
  };
  struct GoBack {
    float* anchor;
    void operator()(const Piece&, index_t i, float mean) const { anchor[i] -= mean; }
  };
  template <Number P>
  struct Take {
    ParameterRef<P> x;
    const float* anchor;
    void operator()(const Piece&, index_t i) const { x.set(i, anchor[i]); }
  };

  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}
  template <Number P>
  static HowFar<P> message(ParameterRef<P> x, OuterBuffers own) {
    return {x, own.first};
  }
  static GoBack land(OuterBuffers own, const StepScalars*, int) { return {own.first}; }
  template <Number P>
  static Take<P> merge(ParameterRef<P> x, OuterBuffers own, const StepScalars*, int) {
    return {x, own.first};
  }
};

}  // namespace

TEST_CASE("outer rules of one's own go by the schedules that there are") {
  const LocalUpdatesFrom<MomentumSgd<>, LateMean, Streaming> own{.period = 6,
                                                                 .schedule = {.count = 3, .delay = 2}};
  auto momentum = with(Streamed{}, {3, 6, 3, 2, 0});
  momentum.outer.rate = 1;
  momentum.outer.momentum = 0;
  const Training training{.layout = layers()};
  CHECK(gap(train(own, 3, training), train(momentum, 3, training), layers()) == 0);
}

TEST_CASE("a local share of 1 leaves ranks alone, and their anchor goes its way") {
  for (const int ranks : {1, 3}) {
    const History ours = train(with(Streamed{}, {ranks, 4, 2, 1, 1}), ranks, {.layout = layers()});
    for (int rank = 0; rank < ranks; ++rank) {
      const History alone = train(MomentumSgd<>{}, 1, {.layout = layers(), .first_rank = rank});
      for (std::size_t step = 0; step < steps; ++step)
        REQUIRE(ours[step][at(rank)].parameters == alone[step][0].parameters);
    }
    const auto anchor = [&](std::size_t step) { return ours[step].front().state.parts.at("anchor"); };
    CHECK(anchor(11) != anchor(7));
    CHECK(all_alike(ours.back(), "anchor"));
  }
}

TEST_CASE("a fragment's bits don't depend on what the others do") {
  const Layout layout = layers();
  Layout other;
  for (Segment segment : layout.segments()) {
    if (segment.name != "a") segment.learning_rate_scale *= 2;
    other.add(segment);
  }
  const auto recipe = with(Streamed{}, {3, 8, 4, 2, 0.5F});
  const History ours = train(recipe, 3, {.layout = layout}), theirs = train(recipe, 3, {.layout = other});
  for (std::size_t step = 0; step < steps; ++step)
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const Floats &mine = ours[step][rank].parameters, &changed = theirs[step][rank].parameters;
      CHECK(std::equal(mine.begin(), mine.begin() + 200, changed.begin()));
      if (step > 1) CHECK(mine != changed);
    }
}

TEST_CASE("the anchor, which all ranks have, can be read as the model, and the point behind it") {
  on_ranks(3, [](Threads& transport) {
    const Layout layout = layers();
    Optimizer optimizer{with(Streamed{}, {3, 4, 2, 1, 0.5F}), transport, layout};
    Floats x = start(layout), model(x.size()), behind(x.size());
    for (int step = 1; step <= 9; ++step)
      optimizer.step(x, Quadratics::gradient<float>(at(transport.rank()), x));
    Seen seen;
    optimizer.walk(seen);
    optimizer.read_out(ReadOut::look_ahead, model);
    optimizer.read_out(ReadOut::current, behind);
    const auto& anchor = seen.parts.at("anchor");
    const auto& velocity = seen.parts.at("outer_velocity");
    double worst = 0;
    each(layout, any_one, [&](std::size_t k) {
      CHECK(in_double(model[k]) == anchor[k]);
      worst = std::max(worst, std::abs(in_double(behind[k]) - anchor[k] - 0.63 * velocity[k]));
    });
    CHECK(worst < 1e-6);
    CHECK(model != x);
  });
}

namespace {

/// This fragment's segments alone, each at the same place of its range.
Layout part_of(const Layout& layout, std::size_t count, std::size_t fragment) {
  const std::vector<std::size_t> fragments = reference::fragments_of(layout, count);
  Layout part;
  for (const Segment& segment : layout.segments())
    if (fragments[at(segment.offset)] == fragment) part.add(segment);
  return part;
}
std::uint64_t bytes_of(const Sent& sent) { return sent.reduced + sent.spread; }

}  // namespace

TEST_CASE("each fragment is sent in its own steps, and nothing in others") {
  constexpr std::size_t count = 4;
  constexpr std::uint64_t period = 10;  // offsets 0, 2, 5 and 7
  for (const std::uint64_t delay : std::initializer_list<std::uint64_t>{0, 1, 4}) {
    const int ranks = 3;
    const History ours =
        train(with(Streamed{}, {ranks, period, count, delay, 0.5F}), ranks, {.layout = layers()});
    for (std::uint64_t step = 1; step <= steps; ++step)
      for (int rank = 0; rank < ranks; ++rank) {
        CAPTURE(step);
        Sent expected;
        for (std::size_t p = 0; p < count; ++p)
          if (step % period == p * period / count)
            expected = one_mean(part_of(layers(), count, p), ranks, rank);
        CHECK(sent_in(ours[step - 1][at(rank)]) == expected);
      }
  }
}

TEST_CASE("in a step of layers of one size it sends as many times less than DiLoCo as there are fragments") {
  Layout even;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"}) even.add({name, {4, 64}});
  for (const int ranks : {2, 4})
    for (const std::uint64_t count : std::initializer_list<std::uint64_t>{1, 2, 4, 8}) {
      CAPTURE(count);
      const auto most = [&](const auto& recipe) {
        std::uint64_t peak = 0, all = 0;
        index_t said = 0;
        on_ranks(ranks, [&](Threads& raw) {
          Metered<Threads> transport(raw.split(0, raw.rank()));
          Optimizer optimizer{recipe, transport, even};
          Floats x = start(even);
          if (raw.rank() == 0) said = optimizer.bytes_per_step().full_precision;
          for (int step = 1; step <= 24; ++step) {
            const std::uint64_t before = transport.traffic().bytes_sent();
            optimizer.step(x, gradient(even, raw.rank(), static_cast<std::uint64_t>(step), 1));
            const std::uint64_t sent = transport.traffic().bytes_sent() - before;
            if (raw.rank() == 0 && step > 8) {
              peak = std::max(peak, sent);
              all += sent;
            }
          }
        });
        CHECK(peak <= static_cast<std::uint64_t>(said));
        return std::pair{static_cast<std::uint64_t>(said), all};
      };
      const auto whole = most(DiLoCo<MomentumSgd<>>{.period = 8});
      const auto parts = most(with(Streamed{}, {ranks, 8, count, 0, 0.5F}));
      // Both phases send a header of 32 bytes to each peer.
      const std::uint64_t headers = 2 * 32 * static_cast<std::uint64_t>(ranks - 1);
      CHECK((parts.first - headers) * count == whole.first - headers);
      CHECK(parts.second - 2 * count * headers == whole.second - 2 * headers);
    }
}

TEST_CASE("what is said of a step's bytes counts all rounds that may be under way in it") {
  on_ranks(2, [](Threads& transport) {
    const Layout layout = layers();
    const auto said = [&](std::uint64_t delay) {
      const Optimizer optimizer{with(Streamed{}, {2, 8, 4, delay, 0}), transport, layout};
      return static_cast<std::uint64_t>(optimizer.bytes_per_step().full_precision);
    };
    std::vector<std::uint64_t> parts;
    std::uint64_t all = 0;
    for (std::size_t p = 0; p < 4; ++p) {
      parts.push_back(bytes_of(one_mean(part_of(layout, 4, p), 2, transport.rank())));
      all += parts.back();
    }
    CHECK(said(0) == *std::max_element(parts.begin(), parts.end()));
    CHECK(said(1) == said(0));
    std::uint64_t two = 0;
    for (std::size_t p = 0; p < 4; ++p) two = std::max(two, parts[p] + parts[(p + 1) % 4]);
    CHECK(said(2) == two);
    CHECK(said(8) == all);
  });
}

TEST_CASE("moves of 4 bits go where exact ones do") {
  const RateOf cooling = [](std::uint64_t step) { return 0.05F * (1 - static_cast<float>(step - 1) / 400); };
  const Training training{cooling, layers(), 400, false};
  const auto most_apart = [&](const auto& recipe) {
    const History ours = train(with(recipe, {2, 8, 4, 2, 0}), 2, training);
    const History exact = train(with(Streamed{.inner = plain()}, {2, 8, 4, 2, 0}), 2, training);
    return relative_error(
        layers(), ours.back()[0].parameters, exact.back()[0].parameters,
        [](const Segment& segment) { return segment.compress; }, 1);
  };
  const double e3m0_apart = most_apart(StreamingDiLoCo<MomentumSgd<>, Cast<e3m0, MaxAbs>>{.inner = plain()});
  const double uniform_apart =
      most_apart(StreamingDiLoCo<MomentumSgd<>, Uniform<4>, Residual>{.inner = plain()});
  CHECK(e3m0_apart > 1e-6);
  CHECK(e3m0_apart < 0.15);
  CHECK(uniform_apart > 1e-6);
  CHECK(uniform_apart < 0.05);
}

TEST_CASE("period and delay may change while rounds are under way") {
  on_ranks(3, [](Threads& transport) {
    Optimizer optimizer{with(Streamed{}, {3, 8, 4, 3, 0.5F}), transport, layers()};
    Floats x = start(layers()), model(x.size());
    for (int step = 1; step <= 40; ++step) {
      if (step == 10) optimizer.recipe.period = 5;
      if (step == 14) optimizer.recipe.schedule.delay = 0;
      if (step == 19) optimizer.recipe.schedule = {.count = 1, .delay = 5};
      if (step == 27) optimizer.recipe.period = 30;
      optimizer.step(x, Quadratics::gradient<float>(at(transport.rank()), x));
    }
    Seen seen;
    optimizer.walk(seen);
    optimizer.read_out(ReadOut::look_ahead, model);
    Assembly<float, Threads> everyone(transport);
    each(layers(), any_one, [&](std::size_t k) {
      for (const float other : everyone(transport, model[k], Phase::agree)) CHECK(other == model[k]);
      CHECK(model[k] != start(layers())[k]);
    });
  });
}

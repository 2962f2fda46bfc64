// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include <filesystem>
#include <tuple>

#include "compositions.hpp"
#include "device_support.hpp"
#include "guards.inc"
#include "terse/exchange/hierarchical.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/zero_one_adam.hpp"

// A user's mask: what it leaves out of the second stage, until when, on which ranks, and what a checkpoint keeps of it.

namespace {

using Bits = std::vector<std::uint8_t>;

constexpr std::uint64_t freeze_step = 6;
constexpr FrozenVariance freeze{.freeze = AtStep{freeze_step}};

/// Positions that shorter sequences don't have, and single elements around block and word edges.
Layout with_positions() {
  Layout layout;
  layout.add({"positions", {64, 33}, 0.5F});
  layout.add({"exact", {70}, 1, 1, false});
  layout.add({"w", {65, 20}});
  layout.add({"last", {130}});
  return layout;
}
Bits mask_of(const Layout& layout, index_t rows = 40) {
  Bits mask(at(layout.size()), 1);
  for (index_t i = 33 * rows; i < 33 * 64; ++i) mask[at(i)] = 0;
  for (index_t i = 33 * 64; i < layout.size(); ++i) mask[at(i)] = i % 5 == 2 ? 0 : 0xFF;
  return mask;
}
/// The mask, but for exact segments, which have none.
bool left_out(const Layout& layout, const Bits& mask, std::size_t i) {
  const Segment& exact = layout.segments()[1];
  const auto k = static_cast<index_t>(i);
  return mask[i] == 0 && !(k >= exact.offset && k < exact.offset + exact.count);
}

/// Lets all elements take part, and learns nothing from a first stage.
struct TakesAll {
  static constexpr PreconditionerFacts facts{};
  static constexpr std::array<const char*, 0> state{};
  template <class Real>
  struct Rule {
    template <class Element>
    Real step(const Element&, Real, Real direction) const {
      return direction;
    }
    template <class Element>
    bool takes_part(const Element&) const {
      return true;
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {};
  }
};

struct AllBut {
  index_t element;
  bool operator()(const Piece&, index_t i, bool) const { return i != element; }
};

struct Give {
  Bits mask;
  template <class O>
  void operator()(O& optimizer) const {
    optimizer.mask(mask);
  }
};

/// Of what is left out, larger than all others.
Floats loud(const Layout& layout, const Bits& mask, int rank, std::uint64_t step, float factor) {
  Floats g = gradient(layout, rank, step, 1);
  for (std::size_t i = 0; i < g.size(); ++i)
    if (left_out(layout, mask, i)) g[i] *= factor;
  return g;
}

/// history[step - 1][rank]
template <class R, class Prepare>
History steps_of(const R& recipe, int ranks, const Layout& layout, const Bits& mask, float factor,
                 const Prepare& prepare, std::uint64_t steps = 14) {
  History history(steps, std::vector<Snapshot>(at(ranks)));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout, masks_any()};
    prepare(optimizer);
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      optimizer.step(x, loud(layout, mask, transport.rank(), step, factor));
      Snapshot& snapshot = history[step - 1][at(transport.rank())];
      optimizer.walk(snapshot.state);
      snapshot.parameters = x;
    }
  });
  return history;
}

/// From the freeze on, a mask is as good as gradients that have always been 0.
template <class R>
void as_if_silent(const R& recipe, int ranks) {
  CAPTURE(type_name<R>());
  CAPTURE(ranks);
  const Layout layout = with_positions();
  const Bits mask = mask_of(layout);
  const History silent = steps_of(recipe, ranks, layout, mask, 0, NoPreparation{});
  const History masked = steps_of(recipe, ranks, layout, mask, 30, Give{mask});
  const History plain = steps_of(recipe, ranks, layout, mask, 30, NoPreparation{});
  for (std::size_t k = 0; k < masked.size(); ++k)
    for (std::size_t rank = 0; rank < at(ranks); ++rank) {
      CAPTURE(k);
      CAPTURE(rank);
      const Snapshot &one = masked[k][rank], &other = silent[k][rank];
      std::size_t apart = 0, moved = 0;
      for (std::size_t i = 0; i < mask.size(); ++i)
        if (!left_out(layout, mask, i))
          apart += one.parameters[i] != other.parameters[i] ? 1 : 0;
        else if (k >= freeze_step)
          moved += one.parameters[i] != masked[freeze_step - 1][rank].parameters[i] ? 1 : 0;
      CHECK(apart == 0);
      CHECK(moved == 0);
      // Momentum, frozen denominators, errors, scales, and the mask itself.
      if (k + 1 >= freeze_step) CHECK(one.state.parts == other.state.parts);
      // The mask waits.
      if (k + 1 < freeze_step) CHECK(one.parameters == plain[k][rank].parameters);
    }
  CHECK(plain.back()[0].parameters != masked.back()[0].parameters);
  // What is not left out goes on.
  CHECK(masked.back()[0].parameters[0] != masked[freeze_step - 1][0].parameters[0]);
  CHECK(masked.back()[0].parameters[at(33 * 50)] != start(layout)[at(33 * 50)]);
}

}  // namespace

TEST_CASE("1-bit Adam: what is left out is as if its gradients had always been 0") {
  as_if_silent(OneBitAdam<>{.preconditioner = freeze}, 1);
  as_if_silent(OneBitAdam<>{.preconditioner = freeze}, 4);
  as_if_silent(OneBitAdam<Ring>{.preconditioner = freeze}, 3);
  as_if_silent(OneBitAdam<Hierarchical<>>{.preconditioner = freeze, .topology = {2}}, 4);
  as_if_silent(OneBitAdam<ScaledSign<MeanAbs, PerBlock<64>>>{.preconditioner = freeze}, 2);
}

TEST_CASE("1-bit LAMB: what is left out is as if its gradients had always been 0") {
  // Coefficients of 1: what is left out counts in the first stage's.
  const OneBitLamb<> recipe{.min_coefficient = 1, .max_coefficient = 1, .preconditioner = freeze};
  as_if_silent(recipe, 4);
  as_if_silent(OneBitLamb<Ring>{.min_coefficient = 1, .max_coefficient = 1, .preconditioner = freeze}, 3);
  as_if_silent(
      OneBitLamb<Hierarchical<>>{
          .min_coefficient = 1, .max_coefficient = 1, .preconditioner = freeze, .topology = {2}},
      4);
}

TEST_CASE("masked methods of two stages follow the oracle") {
  // See compositions_staged.cpp.
  constexpr double rounding = 2e-6;
  const Layout layout = few_layers();
  Training training{.clip_norm = 6, .mask = Bits(at(layout.size()), 1)};
  for (std::size_t i = 0; i < training.mask.size(); ++i)
    if (i % 7 == 1 || (i > 100 && i < 180)) training.mask[i] = 0;
  const auto follows = [&](const auto& recipe) {
    follows_oracle(recipe, rounding, training, layout, Give{training.mask});
  };
  follows(OneBitAdam<AllGather>{.learning_rate = 0.01F, .weight_decay = 0.1F, .preconditioner = freeze});
  follows(OneBitLamb<AllGather>{
      .learning_rate = 0.01F, .beta2 = 0.9F, .weight_decay = 0.1F, .preconditioner = freeze});
  // Of which nothing in the second stage is masked by itself, and whose momentum goes over as it is.
  follows(Staged<Averaging<HeavyBall>, Averaging<HeavyBall, Sign, AllGather>>{
      .first = {.learning_rate = 0.02F}, .second = {.learning_rate = 0.02F}, .when = {freeze_step}});
  follows(Staged<Averaging<HeavyBall>, Averaging<HeavyBall, TakesAll, Sign, AllGather>>{
      .first = {.learning_rate = 0.02F}, .second = {.learning_rate = 0.02F}, .when = {freeze_step}});
  // From the first step on.
  follows(Staged<Averaging<HeavyBall>, Averaging<HeavyBall, Sign, AllGather>>{
      .first = {.learning_rate = 0.02F}, .second = {.learning_rate = 0.02F}, .when = {0}});
}

TEST_CASE("only weight decay moves what is left out, as it does what the freeze has masked") {
  Layout layout;
  layout.add({"w", {200}});
  Bits mask(at(layout.size()), 1);
  for (std::size_t i = 100; i < 150; ++i) mask[i] = 0;
  constexpr float rate = 0.01F, decay = 0.25F;
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{OneBitAdam<>{.learning_rate = rate, .weight_decay = decay, .preconditioner = freeze},
                        transport, layout, masks_any()};
    optimizer.mask(mask);
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= 12; ++step) {
      const Floats before = x;
      optimizer.step(x, gradient(layout, transport.rank(), step, 9));  // some are silent until then
      if (step <= freeze_step) continue;
      std::size_t off = 0, decayed = 0;
      for (std::size_t i = 0; i < 200; ++i) {
        const bool only_decays = x[i] == before[i] - rate * (decay * before[i]);
        if (mask[i] == 0 || i % 17 == 3)
          off += only_decays ? 0 : 1;
        else
          decayed += only_decays ? 1 : 0;
      }
      CHECK(off == 0);
      CHECK(decayed == 0);
    }
  });
}

TEST_CASE("a mask goes into checkpoints and comes back") {
  const auto folder =
      std::filesystem::temp_directory_path() /
      ("terse-mask-" + std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()));
  std::filesystem::create_directories(folder);
  const Layout layout = with_positions();
  const Bits mask = mask_of(layout), other = mask_of(layout, 20);
  ThreadGroup(3, std::chrono::seconds(60)).run([&](Threads& transport) {
    const auto file = folder / (std::to_string(transport.rank()) + ".safetensors");
    const auto go = [&](auto& optimizer, Floats& x, std::uint64_t until) {
      while (optimizer.steps() < until)
        optimizer.step(x, gradient(layout, transport.rank(), optimizer.steps() + 1, 1));
    };
    const OneBitAdam<> recipe{.preconditioner = freeze};
    for (const bool masked : {true, false})
      for (const std::uint64_t k : std::initializer_list<std::uint64_t>{3, 5, 6, 7, 9}) {
        CAPTURE(masked);
        CAPTURE(k);
        Optimizer through{recipe, transport, layout};
        Floats x = start(layout);
        go(through, x, 2);
        if (masked) through.mask(mask);
        go(through, x, k);
        checkpoint::save(file, through, x);
        go(through, x, 14);

        // What it was given before counts no more. A file of a run without a mask is also one of a time before masks.
        Optimizer resumed{recipe, transport, layout};
        Floats y(at(layout.size()), 3.0F);
        resumed.mask(other);
        checkpoint::load(file, resumed, y);
        go(resumed, y, 14);
        CHECK(checkpoint::parameters_hash(layout, x) == checkpoint::parameters_hash(layout, y));
        Seen a, b;
        through.walk(a);
        resumed.walk(b);
        CHECK(a.parts == b.parts);
      }
  });
  std::filesystem::remove_all(folder);
}

TEST_CASE("the last mask counts, and what it says of exact segments and padding does not") {
  const Layout layout = with_positions();
  const Bits mask = mask_of(layout), other = mask_of(layout, 20);
  const OneBitAdam<> recipe{.preconditioner = freeze};
  const History once = steps_of(recipe, 3, layout, mask, 1, Give{mask});
  const History twice = steps_of(recipe, 3, layout, mask, 1, [&](auto& optimizer) {
    optimizer.mask(other);
    Bits same = mask;
    // One rank's own, which no other one need have.
    if (optimizer.rank() == 1) {
      const Segment& exact = layout.segments()[1];
      for (index_t i = exact.offset; i < exact.offset + 128; ++i) same[at(i)] ^= 0xFF;
      same.back() ^= 0xFF;
    }
    optimizer.mask(same);
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(once.back()[rank].parameters == twice.back()[rank].parameters);
    CHECK(once.back()[rank].state.parts == twice.back()[rank].state.parts);
  }
}

TEST_CASE("ranks with different masks refuse each other's packets, in both stages") {
  const Layout layout = with_positions();
  const Bits mask = mask_of(layout);
  Bits other = mask;
  other[0] = 0;
  const auto run_apart = [&](std::uint64_t when, bool all, const OneBitAdam<>& recipe) {
    std::atomic<int> fine{0};
    const auto run = [&] {
      ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
        Optimizer optimizer{recipe, transport, layout};
        Floats x = start(layout);
        for (std::uint64_t step = 1; step <= 3; ++step) {
          if (step == when && transport.rank() == 2) optimizer.mask(other);
          if (step == when && transport.rank() != 2 && all) optimizer.mask(mask);
          optimizer.step(x, gradient(layout, transport.rank(), step, 1));
          if (step < when) ++fine;
        }
      });
    };
    CHECK_THROWS_WITH_AS(run(), doctest::Contains("hyper-parameters"), wire_error);
    CHECK(fine == static_cast<int>(3 * (when - 1)));
  };
  run_apart(1, true, {.preconditioner = freeze});
  run_apart(2, false, {.preconditioner = freeze});
  run_apart(2, true, {.preconditioner = {.freeze = AtStep{2}}});
}

namespace {

/// What ranks have seen of a freeze.
struct Freezing {
  std::vector<std::string> errors;
  std::vector<index_t> masked;
  std::vector<std::string> segments;
};
/// Takes `steps` steps on three ranks, in the first `silent_until` of which the gradients of elements [10, 30) of "w" and
/// [100, 130) of "last" are 0, and of half of "exact".
template <class R>
Freezing freezing_of(const R& recipe, const Options& options, std::uint64_t steps,
                     std::uint64_t silent_until = 99) {
  const Layout layout = with_positions();
  Freezing seen{std::vector<std::string>(3), std::vector<index_t>(3), std::vector<std::string>(3)};
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout, options};
    const auto rank = at(transport.rank());
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      Floats g = gradient(layout, transport.rank(), step, 1);
      for (const auto& [name, from, to] :
           {std::tuple{1, 0, 35}, std::tuple{2, 10, 30}, std::tuple{3, 100, 130}})
        for (index_t i = from; i < to && step <= silent_until; ++i)
          g[at(layout.segments()[at(name)].offset + i)] = 0;
      try {
        const StepResult result = optimizer.step(x, g);
        seen.masked[rank] += result.masked.elements;
        for (const MaskedSegment& segment : result.masked.segments)
          seen.segments[rank] += std::string(segment.name) + " " + std::to_string(segment.masked) + " of " +
                                 std::to_string(segment.elements) + ";";
      } catch (const usage_error& error) {
        seen.errors[rank] = error.what();
      }
      CHECK(optimizer.steps() == step);
    }
  });
  return seen;
}

}  // namespace

TEST_CASE("what a freeze masks is said by segment, and too much is refused by all ranks together") {
  const auto refused = [](const Freezing& seen, const std::vector<std::string>& words) {
    for (const std::string& error : seen.errors)
      for (const std::string& word : words) CHECK_MESSAGE(error.find(word) != error.npos, error);
    CHECK(seen.masked == std::vector<index_t>(3));
  };
  const auto told = [](const Freezing& seen, index_t masked, const std::string& segments) {
    CHECK(seen.errors == std::vector<std::string>(3));
    CHECK(seen.masked == std::vector<index_t>(3, masked));
    CHECK(seen.segments == std::vector<std::string>(3, segments));
  };
  const std::vector<std::string> words{"and 50 of 3542 elements would be masked",
                                       "20 of 1300 in segment 'w', 30 of 130 in segment 'last'.",
                                       "Freeze later",
                                       "Optimizer::mask",
                                       "compress = false",
                                       "step 4"};
  const std::string segments = "w 20 of 1300;last 30 of 130;";
  const FrozenVariance at_4{.freeze = AtStep{4}};
  // 1.41 %.
  refused(freezing_of(OneBitAdam<>{.preconditioner = at_4}, {}, 4), words);
  told(freezing_of(OneBitAdam<>{.preconditioner = at_4}, {.most_masked = 0.0142F}, 7), 50, segments);
  refused(freezing_of(OneBitAdam<>{.preconditioner = at_4}, {.most_masked = 0.0141F}, 4), words);
  refused(freezing_of(OneBitLamb<>{.preconditioner = at_4}, {}, 4), words);
  told(freezing_of(OneBitLamb<>{.preconditioner = at_4}, {.most_masked = 1}, 7), 50, segments);
  // Gradients come in the step after.
  refused(freezing_of(OneBitAdam<>{.preconditioner = at_4}, {}, 5, 4), words);
  told(freezing_of(OneBitAdam<>{.preconditioner = {.freeze = AtStep{5}}}, {}, 7, 4), 0, "");
  // 0/1 Adam's freeze concerns all segments.
  refused(freezing_of(ZeroOneAdam<>{.variance_freeze_step = 4}, {}, 4),
          {"and 85 of 3612 elements", "35 of 70 in segment 'exact'",
           "allow a larger share (Options::most_masked)"});
  told(freezing_of(ZeroOneAdam<>{.variance_freeze_step = 4}, {.most_masked = 1}, 7), 85,
       "exact 35 of 70;" + segments);
  refused(freezing_of(SlowMo<OneBitAdam<>, Inside::together>{.inner = {.preconditioner = at_4}, .period = 2},
                      {}, 4),
          words);
  // Ranks that learn alone don't know of each other, so that none refuses; they say what they have masked.
  told(freezing_of(LocalSgd<OneBitAdam<>>{.inner = {.preconditioner = at_4}, .period = 2}, {}, 7), 50,
       segments);
  // Swarms say it, too.
  told(freezing_of(SwarmSgd<OneBitAdam<>>{.inner = {.preconditioner = at_4}}, {}, 7), 50, segments);
  CHECK_THROWS_WITH_AS(freezing_of(OneBitAdam<>{.preconditioner = at_4}, {.most_masked = 1.5F}, 1),
                       doctest::Contains("most_masked is a share"), usage_error);
}

TEST_CASE("1 of 100 is 1 %, and those that a user has left out are none of them") {
  const auto masks = [](index_t elements, index_t left_out, index_t masked) {
    const Layout layout = Layout::flat(elements);
    detail::MaskedElements counted(layout, Options{}.most_masked, "");
    counted.begin();
    std::vector<std::uint64_t> bits(at(layout.size() / alignment), ~std::uint64_t{0});
    for (index_t i = 0; i < masked; ++i) bits[at(i / 64)] &= ~(std::uint64_t{1} << (i % 64));
    counted.add(0, elements, view<const std::uint64_t>(bits));
    counted.leave_out(0, left_out);
    return counted.end();
  };
  CHECK(masks(100, 0, 1));
  CHECK_FALSE(masks(99, 0, 1));
  CHECK(masks(10000, 5000, 50));
  CHECK_FALSE(masks(10000, 9950, 50));
  CHECK(masks(100, 100, 0));
}

TEST_CASE_TEMPLATE("a freeze that is refused has changed nothing", E, executor::host, Device) {
  const Layout layout = with_positions();
  const Bits mask = mask_of(layout);
  index_t takes_part = 0;
  for (const Segment& segment : layout.segments())
    for (index_t i = 0; i < segment.count && segment.compress; ++i)
      takes_part += mask[at(segment.offset + i)] != 0 ? 1 : 0;
  const std::string refusal = "100 of " + std::to_string(takes_part) + " elements";
  CHECK(takes_part < 3542);
  const auto parts_of = [&](std::uint64_t freeze_at, std::uint64_t steps, bool silent) {
    std::vector<Parts> parts(steps);
    const auto run = [&](auto& transport) {
      Optimizer optimizer{
          OneBitAdam<>{.preconditioner = {.freeze = AtStep{freeze_at}}}, transport, layout, {}, E{}};
      buffer<std::uint8_t, typename E::memory> given(layout.size());
      upload(view<const std::uint8_t>(mask), given.all());
      optimizer.mask(given.all());
      auto x = uploaded<E>(start(layout));
      for (std::uint64_t step = 1; step <= steps; ++step) {
        Floats host = gradient(layout, 0, step, 1);
        if (silent && step < 5) std::fill_n(host.begin() + 33 * 30, 100, 0.0F);
        const auto g = uploaded<E>(host);
        if (step < freeze_at)
          optimizer.step(x.all(), g.all());
        else if (silent && step < 5)
          // Not what the user has left out.
          CHECK_THROWS_WITH_AS(optimizer.step(x.all(), g.all()), doctest::Contains(refusal.c_str()),
                               usage_error);
        else
          CHECK(optimizer.step(x.all(), g.all()).masked.elements == 0);
        Look look{parts[step - 1]};
        look("parameters", x.all(), 0);
        optimizer.walk(look);
      }
    };
    ThreadGroup(1).run([&](Threads& raw) {
      if constexpr (GridExecutor<E>) {
        ThroughHost<Threads, E> staged(raw.split(0, 0), E{});
        run(staged);
      } else {
        run(raw);
      }
    });
    return parts;
  };
  CHECK(parts_of(3, 4, true) == parts_of(50, 4, true));
  // Goes over as soon as there is something to learn from.
  CHECK(parts_of(3, 8, true) == parts_of(5, 8, true));
}

TEST_CASE("masks that can't be, and when they can't be given") {
  const Layout layout = with_positions();
  const Bits mask = mask_of(layout);
  ThreadGroup(1).run([&](Threads& transport) {
    Floats x = start(layout);
    const Floats g = gradient(layout, 0, 1, 1);
    Optimizer optimizer{OneBitAdam<>{.preconditioner = {.freeze = AtStep{2}}}, transport, layout};
    CHECK_THROWS_WITH_AS(optimizer.mask(Bits(100, 1)), doctest::Contains("allocate layout.size()"),
                         usage_error);
    optimizer.step(x, g);
    CHECK_NOTHROW(optimizer.mask(mask));
    optimizer.step(x, g);
    CHECK_THROWS_WITH_AS(optimizer.mask(mask), doctest::Contains("the second stage has begun"), usage_error);

    // Without a first stage: at once, or not at all.
    using Signs = Staged<Averaging<HeavyBall>, Averaging<HeavyBall, Sign>>;
    Optimizer early{Signs{.when = {0}}, transport, layout};
    early.mask(Bits(mask.size(), 0));
    early.mask(mask);
    const Floats before = x;
    early.step(x, g);
    std::size_t wrong = 0;
    for (const Segment& segment : layout.segments())
      for (index_t i = segment.offset; i < segment.offset + segment.count; ++i)
        wrong += (x[at(i)] == before[at(i)]) != left_out(layout, mask, at(i)) ? 1 : 0;
    CHECK(wrong == 0);
    CHECK_THROWS_WITH_AS(early.mask(mask), doctest::Contains("the second stage has begun"), usage_error);
  });
}

TEST_CASE_TEMPLATE("where all elements take part verbs get no mask", E, executor::host, Device) {
  const Layout layout = with_positions();
  const Segment &exact = layout.segments()[1], &last = layout.segments()[3];
  std::vector<Piece> pieces = layout.range().pieces();
  pieces.erase(pieces.begin() + 1);
  terse::detail::ElementMask<E> mask(E{}, Range(pieces), layout.size(), {layout, 1, ""});
  CHECK(mask.mask().words != nullptr);
  const auto leave_out = [&](index_t element) {
    mask.set(AllBut{element});
    CHECK(mask.full() == (mask.mask().words == nullptr));
    return !mask.full();
  };
  for (const index_t element :
       {index_t{0}, index_t{63}, index_t{1000}, last.offset, last.offset + last.count - 1})
    CHECK(leave_out(element));
  for (const index_t element : {index_t{-1}, exact.offset + 3, last.offset + last.count})
    CHECK_FALSE(leave_out(element));
  CHECK(leave_out(7));
  mask.set_all();
  CHECK(mask.mask().words == nullptr);
  // A checkpoint brings others.
  for (const bool all : {false, true, false}) {
    terse::detail::ElementMask<E> saved(E{}, Range(pieces), layout.size(), {layout, 1, ""});
    saved.set(AllBut{all ? -1 : 5});
    std::vector<std::uint64_t> words(at(layout.size() / alignment));
    using Words = view<std::uint64_t, typename E::memory>;
    saved.walk([&](const char*, Words from, index_t) {
      download(view<const std::uint64_t, typename E::memory>(from), view<std::uint64_t>(words));
    });
    mask.walk([&](const char*, Words to, index_t) { upload(view<const std::uint64_t>(words), to); });
    CHECK(mask.full() == all);
    CHECK(mask.digest() == saved.digest());
  }
}

TEST_CASE("a device has the host's bits under a mask") {
  const Layout layout = with_positions();
  const auto trace_of = [&](const auto& recipe, auto& transport, auto executor) {
    using E = decltype(executor);
    const Bits mask = mask_of(layout);
    buffer<std::uint8_t, typename E::memory> given(layout.size());
    upload(view<const std::uint8_t>(mask), given.all());
    Optimizer optimizer{recipe, transport, layout, {}, executor};
    optimizer.mask(given.all());
    auto x = uploaded<E>(start(layout));
    std::vector<Parts> steps;
    for (std::uint64_t step = 1; step <= 9; ++step) {
      const auto g = uploaded<E>(gradient(layout, transport.rank(), step, 4));
      optimizer.step(x.all(), g.all());
      Look look{steps.emplace_back()};
      look("parameters", x.all(), 0);
      optimizer.walk(look);
    }
    return steps;
  };
  const auto equal_bits = [&](const auto& recipe) {
    std::vector<std::vector<Parts>> host(3), device(3);
    ThreadGroup(3, std::chrono::seconds(60)).run([&](Threads& transport) {
      const auto rank = at(transport.rank());
      host[rank] = trace_of(recipe, transport, executor::host{});
      ThroughHost<Threads, Device> staged(transport.split(0, transport.rank()), Device{});
      device[rank] = trace_of(recipe, staged, Device{});
    });
    for (std::size_t rank = 0; rank < 3; ++rank) CHECK(host[rank] == device[rank]);
  };
  equal_bits(OneBitAdam<>{.weight_decay = 0.1F, .preconditioner = freeze});
  equal_bits(OneBitLamb<Ring>{.weight_decay = 0.1F, .preconditioner = freeze});
}

TEST_CASE("steps under a mask allocate nothing") {
  const Layout layout = two_kinds();
  Bits mask(at(layout.size()), 1);
  for (std::size_t i = 0; i < mask.size(); i += 3) mask[i] = 0;
  check_allocations(OneBitAdam<>{.preconditioner = freeze}, {}, 3, Give{mask});
  check_allocations(OneBitLamb<Ring>{.preconditioner = freeze}, {}, 3, Give{mask});
}

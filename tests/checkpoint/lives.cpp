// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <random>

#include "optimizer/support.hpp"
#include "terse/checkpoint/checkpoint.hpp"
#include "terse/optimizer/zero_one_adam.hpp"

// A random program over an optimizer's life. What must change nothing (a save and a load, another order of gradients, checks, a step
// that is refused) happens to one of two optimizers, whose parameters and states must stay the other's, to the bit. And what
// should change nothing but the time that a step takes, as errors that are computed where they are read, is done by that one alone.

using namespace terse;
using namespace terse::test;

namespace {

Layout layers() {
  Layout layout;
  layout.add({"a", {65, 9}})
      .add({"bias", {7}, 0.5F, 0, false})
      .add({"b", {300}})
      .add({"exact", {130}, 1, 1, false})
      .add({"c", {1}});
  return layout;
}

/// Signs whose codes might depend on the scale, for all that the library knows: errors are written in each round.
template <class S>
struct AnySign : quantizer::SignBit<S> {};
struct AnyTwoMeans : quantizer::TwoMeanBit {};
static_assert(detail::CodesWithoutScale<Sign>::value &&
              !detail::CodesWithoutScale<Packed<AnySign<MeanAbs>, Whole>>::value);

/// The calm one may have another recipe, of the same arithmetic.
template <class R, class Calm>
class Life {
  using Made = Optimizer<R, Threads>;

 public:
  Life(const R& recipe, const Calm& calm, Threads& transport, std::uint64_t seed,
       const std::filesystem::path& folder)
      : recipe_(recipe),
        transport_(transport),
        random_(seed),
        file_(folder / ("rank-" + std::to_string(transport.rank()))),
        skips_(seed % 2 == 0),
        calm_(calm, transport, layers(), options()),
        calm_x_(start(calm_.layout())),
        busy_x_(calm_x_) {
    busy_.emplace(recipe, transport, layers(), options());
  }

  /// False once they differ.
  bool event() {
    const auto which = random_() % 8;
    if (which == 0)
      refused();
    else if (which == 1)
      reborn();
    else if (which == 2)
      other_rate();
    else if (which == 3)
      random_() % 2 == 0 ? masked() : rescaled();
    else
      step();
    std::string differing = calm_x_ == busy_x_ ? "" : "parameters";
    // Whoever looks at states has errors written, so that most rounds follow others at which nobody has looked.
    if (random_() % 4 == 0) {
      Seen calm, busy;
      calm_.walk(calm);
      busy_->walk(busy);
      for (const auto& [name, part] : calm.parts)
        if (part != busy.parts[name]) differing += " " + name;
    }
    CAPTURE(which);
    CHECK(differing == "");
    CHECK(calm_.steps() == busy_->steps());
    return differing.empty();
  }

 private:
  Options options() const {
    return masks_any({.on_non_finite = skips_ ? NonFinite::skip : NonFinite::throw_});
  }
  Floats gradients() {
    Floats g = gradient(calm_.layout(), transport_.rank(), ++drawn_, 4);
    const float factor = random_() % 5 == 0 ? 0 : static_cast<float>(random_() % 7) + 0.5F;
    for (float& value : g) value *= factor;
    return g;
  }
  void step() {
    const Floats g = gradients();
    const float scale = random_() % 3 == 0 ? 0.5F : 1.0F;
    calm_.step(calm_x_, g, scale);
    std::vector<index_t> order(calm_.layout().segments().size());
    std::iota(order.begin(), order.end(), index_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    const bool early = random_() % 2 == 0;
    if constexpr (requires { busy_->begin(busy_x_, g, scale); })
      if (early) {
        busy_->begin(busy_x_, g, scale);
        for (const index_t segment : order) {
          busy_->ready(segment);
          busy_->progress();
        }
      }
    busy_->step(busy_x_, g, scale);
  }
  /// A skipped step changes nothing, so that the calm one does not take it. After an error both have the same parameters as before,
  /// while error feedbacks may have taken in the message, so that both take it.
  void refused() {
    Floats g = gradients();
    const int rank = static_cast<int>(random_() % static_cast<unsigned>(transport_.size()));
    // Of an exact segment, since what a mask leaves out counts for nothing.
    const Segment& segment = calm_.layout().segments()[3];
    const index_t place = segment.offset + static_cast<index_t>(random_()) % segment.count;
    if (rank == transport_.rank()) g[at(place)] = std::numeric_limits<float>::quiet_NaN();
    if (skips_) {
      CHECK_FALSE(busy_->step(busy_x_, g).applied);
    } else {
      const Floats before = busy_x_;
      CHECK_THROWS_AS(busy_->step(busy_x_, g), non_finite_error);
      CHECK(busy_x_ == before);
      CHECK_THROWS_AS(calm_.step(calm_x_, g), non_finite_error);
    }
  }
  /// Through a file into another optimizer, whose checks are others.
  void reborn() {
    checkpoint::save(file_, *busy_, busy_x_);
    const Layout layout = busy_->layout();
    busy_.reset();
    Options others = options();
    others.check_payload = random_() % 2 == 0;
    others.compare_every = random_() % 3;
    busy_.emplace(recipe_, transport_, layout, others);
    busy_->learning_rate(rate_);
    each(
        layout, [](const Segment&) { return true; }, [&](std::size_t i) { busy_x_[i] = -5; });
    checkpoint::load(file_, *busy_, busy_x_);
  }
  void other_rate() {
    rate_ = random_() % 4 == 0 ? 0.0F : 1e-3F * static_cast<float>(random_() % 9 + 1);
    calm_.learning_rate(rate_);
    busy_->learning_rate(rate_);
  }
  void rescaled() {
    const float factor = random_() % 4 == 0 ? 0.0F : 0.5F;
    both([&](auto& one) { one.rescale("b", factor, 0.01F); });
  }
  void masked() {
    std::vector<std::uint8_t> elements(at(calm_.layout().size()));
    for (std::uint8_t& element : elements) element = random_() % 4 != 0;
    // Of methods of two stages.
    if constexpr (requires { recipe_.preconditioner.freeze; })
      if (calm_.full_precision()) both([&](auto& one) { one.mask(elements); });
  }
  template <class Act>
  void both(Act act) {
    act(calm_);
    act(*busy_);
  }

  R recipe_;
  Threads& transport_;
  std::mt19937 random_;
  std::filesystem::path file_;
  bool skips_;
  Optimizer<Calm, Threads> calm_;
  std::optional<Made> busy_;
  Floats calm_x_, busy_x_;
  float rate_ = recipe_.learning_rate;
  std::uint64_t drawn_ = 0;
};

template <class R, class Calm>
void live(const R& recipe, const Calm& calm, int ranks, std::uint64_t seeds = 4) {
  CAPTURE(type_name<R>());
  const auto folder = std::filesystem::temp_directory_path() / ("terse-lives-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
      Life<R, Calm> life(recipe, calm, transport, seed, folder);
      for (int event = 0; event < 60; ++event) {
        CAPTURE(event);
        if (!life.event()) break;
      }
    });
  }
  std::filesystem::remove_all(folder);
}

}  // namespace

TEST_CASE("what must change nothing changes nothing, in whatever order it happens") {
  constexpr FrozenVariance soon{.freeze = AtStep{12}};
  const auto alike = [](const auto& recipe, int ranks) { live(recipe, recipe, ranks); };
  alike(Adam<>{}, 2);
  alike(OneBitAdam<Packed<quantizer::SignBit<MeanAbs>, PerBlock<64>>>{.preconditioner = soon}, 2);
  alike(ErrorFeedbackSgd<TopK<>, HeavyBall>{.compressor = {.selection = {.ratio = 0.1}},
                                            .error_feedback = {.decay = 0.9F, .follows_rate = true}},
        3);
}

TEST_CASE("errors that are computed where they are read are those that were written") {
  constexpr FrozenVariance soon{.freeze = AtStep{6}};
  using AnyOf = Packed<AnySign<RootMeanSquare>, PerSegment>;
  live(OneBitAdam<>{.preconditioner = soon}, OneBitAdam<AnyOf>{.preconditioner = soon}, 3, 8);
  live(OneBitAdam<Ring>{.preconditioner = soon}, OneBitAdam<AnyOf, Ring>{.preconditioner = soon}, 3);
  live(OneBitAdam<ScaledSign<MeanAbs, Whole>, AllGather>{.preconditioner = soon},
       OneBitAdam<Packed<AnySign<MeanAbs>, Whole>, AllGather>{.preconditioner = soon}, 2);
  live(OneBitLamb<>{.preconditioner = {.freeze = AtStep{6}}},
       OneBitLamb<AnyOf>{.preconditioner = {.freeze = AtStep{6}}}, 2);
  live(ZeroOneAdam<>{}, ZeroOneAdam<AnyOf>{}, 2);
  constexpr Residual fading{.decay = 0.9F, .follows_rate = true};
  live(ErrorFeedbackSgd<ScaledSign<MeanAbs>, HeavyBall>{.error_feedback = fading},
       ErrorFeedbackSgd<Packed<AnySign<MeanAbs>, PerSegment>, HeavyBall>{.error_feedback = fading}, 3, 8);
  live(ErrorFeedbackSgd<TwoMeanSign<>, HeavyBall>{.error_feedback = fading},
       ErrorFeedbackSgd<Packed<AnyTwoMeans, PerSegment>, HeavyBall>{.error_feedback = fading}, 2);
}

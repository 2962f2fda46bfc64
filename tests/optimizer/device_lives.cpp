// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <optional>
#include <random>

#include "optimizer/device_support.hpp"

// Errors that are computed where they are read, on a device: whatever happens to an optimizer there leaves the bits of one on the
// host, whose errors tests/checkpoint/lives.cpp compares with written ones.

namespace {

template <class R>
class Lives {
  using Staged = ThroughHost<Threads, Device>;

 public:
  Lives(const R& recipe, const Layout& layout, Threads& transport, std::uint64_t seed)
      : recipe_(recipe),
        layout_(layout),
        rank_(transport.rank()),
        random_(seed),
        staged_(transport.split(0, rank_), Device{}),
        here_(recipe, transport, layout, masks_any()),
        x_(start(layout)),
        y_(uploaded<Device>(x_)) {
    there_.emplace(recipe, staged_, layout, masks_any(), Device{});
  }

  int refused() const { return refused_; }
  void event(const std::filesystem::path& folder) {
    const auto which = random_() % 8;
    CAPTURE(which);
    if (which == 0) {
      const float rate = random_() % 2 == 0 ? 0.0F : 1e-3F * static_cast<float>(random_() % 9 + 1);
      here_.learning_rate(rate);
      there_->learning_rate(rate);
    } else if (which == 1) {
      reborn(folder / std::to_string(rank_));
    } else if (which == 2) {
      look();
    } else {
      step(which == 3);
    }
    Floats found(x_.size());
    download(view<const float, Device::memory>(y_.all()), view<float>(found));
    REQUIRE(found == x_);
  }

 private:
  void step(bool refused) {
    Floats g = gradient(layout_, rank_, ++drawn_, 4);
    if (drawn_ > 4 && random_() % 5 == 0) std::fill(g.begin(), g.end(), 0.0F);
    if (refused && rank_ == 0) g[70] = std::numeric_limits<float>::quiet_NaN();
    const auto given = uploaded<Device>(g);
    const auto refuses = [](auto&& take) {
      try {
        take();
        return false;
      } catch (const non_finite_error&) {
        return true;
      }
    };
    const bool here = refuses([&] { here_.step(x_, g); });
    CHECK(here == refuses([&] { there_->step(y_.all(), given.all()); }));
    refused_ += here ? 1 : 0;
  }
  /// Through a file into another optimizer on the device.
  void reborn(const std::filesystem::path& file) {
    checkpoint::save(file, *there_, y_.all());
    there_.reset();
    there_.emplace(recipe_, staged_, layout_, masks_any(), Device{});
    there_->learning_rate(here_.recipe.learning_rate);
    checkpoint::load(file, *there_, y_.all());
  }
  void look() {
    Parts one, other;
    Look look{one}, look_there{other};
    here_.walk(look);
    there_->walk(look_there);
    for (const auto& part : one) {
      const std::string& name = part.first;
      CAPTURE(name);
      REQUIRE(other.at(name) == part.second);
    }
  }

  R recipe_;
  Layout layout_;
  int rank_;
  std::mt19937 random_;
  Staged staged_;
  Optimizer<R, Threads> here_;
  std::optional<Optimizer<R, Staged, Device>> there_;
  Floats x_;
  buffer<float, Device::memory> y_;
  std::uint64_t drawn_ = 0;
  int refused_ = 0;
};

template <class R>
void live(const R& recipe, const Layout& layout, int events = 60) {
  CAPTURE(type_name<R>());
  const auto folder =
      std::filesystem::temp_directory_path() / ("terse-device-lives-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
    Lives<R> lives(recipe, layout, transport, 7);
    for (int event = 0; event < events; ++event) {
      CAPTURE(event);
      lives.event(folder);
    }
    CHECK(lives.refused() > 0);
  });
  std::filesystem::remove_all(folder);
}

}  // namespace

TEST_CASE("errors that are computed where they are read are the host's") {
  constexpr FrozenVariance soon{.freeze = AtStep{4}};
  const Layout many_tiles = Layout::flat(8 * 4096 + 130);
  live(OneBitAdam<>{.preconditioner = soon}, some_layers());
  live(OneBitAdam<>{.preconditioner = soon}, many_tiles, 30);
  live(OneBitAdam<ScaledSign<MeanAbs, Whole>, AllGather>{.preconditioner = soon}, some_layers());
  live(ErrorFeedbackSgd<TwoMeanSign<>, HeavyBall>{.error_feedback = {.decay = 0.9F, .follows_rate = true}},
       some_layers());
}

namespace {

/// Returns the floats that a functor moves for an element: one for each stream that it reads or writes. What generic code
/// may update, these rules only read.
double floats_of(const detail::Streams<>&) { return 0; }
template <class First, class... Rest>
double floats_of(const detail::Streams<First, Rest...>& streams) {
  return (First::access == detail::Access::updates ? 2 : 1) + floats_of(streams.rest);
}

/// The emulated executor; it counts the floats that kernels move by their functors' streams.
struct Moving : terse::executor::emulated {
  static double& floats() {
    thread_local double count = 0;
    return count;
  }
  template <class Kernel>
  void launch(const Kernel& kernel, index_t blocks) const {
    if constexpr (requires { kernel.body.f_; }) count(kernel.slice, kernel.body.f_);
    if constexpr (requires { kernel.body.codes.f_; }) count(kernel.slice, kernel.body.codes.f_);
    emulated::launch(kernel, blocks);
  }

 private:
  template <class Slice, class F>
  static void count(const Slice& slice, F f) {
    for (int k = 0; k < slice.count; ++k)
      if constexpr (NamesStreams<F>)
        floats() += static_cast<double>(slice.entries[k].piece.count) * floats_of(f.streams());
      else
        floats() = std::numeric_limits<double>::infinity();
  }
};

}  // namespace

TEST_CASE("a compressed step moves eight streams of n floats, and an owner two of its chunk") {
  const Layout layout = Layout::flat(12800);
  ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
    ThroughHost<Threads, Moving> staged(transport.split(0, transport.rank()), Moving{});
    Optimizer optimizer{OneBitAdam<>{.preconditioner = {.freeze = AtStep{1}}}, staged, layout, {}, Moving{}};
    auto x = uploaded<Moving>(start(layout));
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const auto g = uploaded<Moving>(gradient(layout, transport.rank(), step, 1));
      Moving::floats() = 0;
      optimizer.step(x.all(), g.all());
    }
    // Message and update each name one array more, which these rules don't touch and no compiler loads.
    CHECK(Moving::floats() == 12800 * (4.0 + 1 + 4 + 1) + 6400 * 2.0);
  });
}

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../rules.hpp"
#include "terse/codec.hpp"

// The one place here that names the optimizers' functors.

namespace terse::bench::gpu {

TERSE_NUMERICS_BEGIN

/// Sums of eight uniform numbers, near enough to normal ones with deviation 1, and the same on every executor.
struct Noise {
  float* to;
  Draw draw;
  bool positive = false;

  TERSE_HD void operator()(const Piece&, index_t i) const {
    const auto words = draw.block(static_cast<std::uint64_t>(i));
    std::int32_t sum = -262140;
    for (std::size_t w = 0; w < 4; ++w)
      sum += static_cast<std::int32_t>((words[w] & 0xFFFF) + (words[w] >> 16));
    const float x = static_cast<float>(sum) * (1.0F / 53509);
    to[i] = positive ? magnitude(x) + 0.1F : x;
  }
};

/// What a loop over two streams takes.
struct CopyOver {
  const float* from;
  float* to;
  using StreamsOf = CopyOver;
  TERSE_HD auto streams() { return reads(from) + writes(to); }
  TERSE_HD void operator()(const Piece&, index_t i) const { to[i] = from[i]; }
};

/// The host's yardstick.
struct Stretch {
  float* x;
  float factor;
  using StreamsOf = Stretch;
  TERSE_HD auto streams() { return updates(x); }
  TERSE_HD void operator()(const Piece&, index_t i) const { x[i] *= factor; }
};

/// Updates from a rank's own gradient, which no packet has carried.
template <class Update, class Gradient>
struct WithoutPackets {
  Update update;
  Gradient gradient;
  using StreamsOf = WithoutPackets;
  TERSE_HD auto streams() { return update.streams() + gradient.streams(); }
  TERSE_HD void enter(const Piece& piece) {
    terse::enter(update, piece);
    terse::enter(gradient, piece);
  }
  TERSE_HD void operator()(const Piece& piece, index_t i) const { update(piece, i, gradient(piece, i)); }
};

/// Numbers as they are, for compressors by themselves and for what peers send.
struct Samples {
  const float* x;
  using StreamsOf = Samples;
  TERSE_HD auto streams() { return reads(x); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return x[i]; }
};
/// What an optimizer does with a mean, at its simplest.
struct Descend {
  float* x;
  float rate;
  using StreamsOf = Descend;
  TERSE_HD auto streams() { return updates(x); }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const { x[i] -= rate * mean; }
};

TERSE_NUMERICS_END

template <Executor E>
using Floats = buffer<float, typename E::memory>;

/// What functors read that is the same for a whole step, in the executor's memory.
template <Executor E>
class Scalars {
 public:
  Scalars(E ex, const Layout& layout, const StepScalars& values) : now_(1), rates_(layout) {
    upload(view<const StepScalars>(&values, 1), now_.all());
    rates_.set(ex, layout, 1e-3F, 0);
  }
  const StepScalars* now() const { return now_.data(); }
  const Rate* rates() const { return rates_.table(); }

 private:
  buffer<StepScalars, typename E::memory> now_;
  Rates<E> rates_;
};

/// A rank's state and gradients over one segment: momentum m, gradients g, variance v, d = 1 / (sqrt(v) + epsilon) of
/// the freeze, parameters x.
template <Executor E>
class Rank {
 public:
  Layout layout;
  Floats<E> m, g, v, d, x;

  Rank(E ex, index_t n)
      : layout(Layout::flat(n)),
        m(layout.size()),
        g(layout.size()),
        v(layout.size()),
        d(layout.size()),
        x(layout.size()),
        // Adam's corrections after ten steps.
        scalars_(ex, layout, {.step = 10, .gradient_scale = 0.5F, .own = {1.5353F, 100.451F}}) {
    std::uint64_t seed = 1;
    for (Floats<E>* floats : {&m, &g, &v, &d, &x})
      for_each(ex, layout.range(),
               Noise{floats->data(), Draw::shared(seed++, 0, Purpose::user), floats == &v || floats == &d});
  }

  /// 1-bit Adam's, after the freeze.
  OneBitMessage message() { return {{one_bit()}, {g.data(), scalars_.now()}}; }
  OneBitUpdate frozen_update() { return {one_bit()}; }
  auto adam() {
    const AdamUpdate update{rules_of(ExponentialAverage{}, AdamVariance{}, x.data(), g.data(), m.data(),
                                     v.data(), scalars_.rates(), scalars_.now())};
    return WithoutPackets<AdamUpdate, ScaledGradient<float>>{update, {g.data(), scalars_.now()}};
  }

 private:
  OneBitRules one_bit() {
    return rules_of(LocalAverage{}, FrozenVariance{}, x.data(), g.data(), m.data(), d.data(),
                    scalars_.rates(), scalars_.now());
  }

  Scalars<E> scalars_;
};

}  // namespace terse::bench::gpu

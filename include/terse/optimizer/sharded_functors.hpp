// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "terse/executor/factors.hpp"
#include "terse/preconditioner/parameter_ref.hpp"
#include "terse/topology/round_context.hpp"

// The functors of Sharded: `find` leads from the arena to a share.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The gradient times the step's scale, which is in place `at` of the recipe's scalars.
template <Number G>
struct GradientByScalar {
  const G* gradients;
  const StepScalars* now;
  int at;
  float scale = 1;

  using StreamsOf = GradientByScalar;
  TERSE_HD auto streams() { return reads(gradients); }
  TERSE_HD void enter(const Piece&) { scale = now->own[static_cast<std::size_t>(at)]; }
  TERSE_HD float operator()(const Piece&, index_t i) const { return widened(gradients[i]) * scale; }
};

/// Copies owned parameters to a share.
template <Number P>
struct AdoptShare {
  const Moved* places;
  index_t count;
  float* share;
  const P* model;
  index_t begin = 0;  // the arena index of share[0]

  using StreamsOf = AdoptShare;
  TERSE_HD auto streams() { return writes(share, begin) + reads(model); }
  TERSE_HD void enter(const Piece& piece) {
    const Moved& place = find(places, count, piece.offset);
    begin = place.offset - place.there;
  }
  TERSE_HD void operator()(const Piece&, index_t i) const { share[i - begin] = widened(model[i]); }
};

struct TimesFactor {
  float* values;
  float factor;
  using StreamsOf = TimesFactor;
  TERSE_HD auto streams() { return updates(values); }
  TERSE_HD void operator()(const Piece&, index_t i) const { values[i] *= factor; }
};

/// A share's parameters as a message, or their difference to the model's. NaN if the owner's step has failed, so that all ranks
/// learn of it.
template <Number P, bool Moves>
struct SayOwned {
  const Moved* places;
  index_t count;
  const float* share;
  const P* model;
  bool failed;
  index_t begin = 0;

  using StreamsOf = SayOwned;
  TERSE_HD auto streams() {
    if constexpr (Moves)
      return reads(share, begin) + reads(model);
    else
      return reads(share, begin);
  }
  TERSE_HD void enter(const Piece& piece) {
    const Moved& place = find(places, count, piece.offset);
    begin = place.offset - place.there;
  }
  TERSE_HD float operator()(const Piece&, index_t i) const {
    const float x = Moves ? share[i - begin] - widened(model[i]) : share[i - begin];
    return failed ? std::numeric_limits<float>::quiet_NaN() : x;
  }
};
/// Takes over what the owners have sent.
template <Number P, bool Moves>
struct TakeOwned {
  P* model;
  using StreamsOf = TakeOwned;
  TERSE_HD auto streams() {
    if constexpr (Moves)
      return updates(model);
    else
      return writes(model);
  }
  TERSE_HD void operator()(const Piece&, index_t i, float sent) const {
    model[i] = narrowed<P>(Moves ? widened(model[i]) + sent : sent);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse

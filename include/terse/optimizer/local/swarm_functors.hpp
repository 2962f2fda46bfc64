// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/message.hpp"
#include "terse/optimizer/local/outer_step.hpp"

// The functors of SwarmSgd and AsyncSwarmSgd for one element when two ranks meet.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// The move by half the difference. Compressed pieces pass only the difference, dense ones also the sent value.
template <Number P>
struct MoveBy {
  ParameterRef<P> parameters;
  using StreamsOf = MoveBy;
  TERSE_HD auto streams() { return parameters.streams(); }
  TERSE_HD void operator()(const Piece&, index_t i, float difference) const {
    parameters.set(i, parameters[i] + difference);
  }
  TERSE_HD void operator()(const Piece&, index_t i, float own, float difference) const {
    parameters.set(i, own + difference);
  }
};

/// The mean minus the sent value, stored in place of the sent value.
struct KeepGain {
  float* copy;
  using StreamsOf = KeepGain;
  TERSE_HD auto streams() { return updates(copy); }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const { copy[i] = mean - copy[i]; }
};
struct KeepDifference {
  float* copy;
  using StreamsOf = KeepDifference;
  TERSE_HD auto streams() { return writes(copy); }
  TERSE_HD void operator()(const Piece&, index_t i, float difference) const { copy[i] = difference; }
  TERSE_HD void operator()(const Piece&, index_t i, float, float difference) const { copy[i] = difference; }
};

/// The addition of the last meeting's result; the sum is the next message.
template <Number P>
struct TakeUp {
  ParameterRef<P> parameters;
  float* copy;
  using StreamsOf = TakeUp;
  TERSE_HD auto streams() { return parameters.streams() + updates(copy); }
  TERSE_HD void operator()(const Piece&, index_t i) const {
    const float x = parameters[i] + copy[i];
    copy[i] = x;
    parameters.set(i, x);
  }
};

/// The mean with the read value, with the signature of the verbs and that of keyed compressors.
template <Number P>
struct AverageWith {
  ParameterRef<P> parameters;
  using StreamsOf = AverageWith;
  TERSE_HD auto streams() { return parameters.streams(); }
  TERSE_HD void operator()(const Piece&, index_t i, float read) const {
    parameters.set(i, (parameters[i] + read) * 0.5F);
  }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool, float read) const { (*this)(piece, i, read); }
};

TERSE_NUMERICS_END

}  // namespace terse::detail

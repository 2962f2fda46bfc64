// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/half.hpp"
#include "terse/core/layout.hpp"
#include "terse/executor/streams.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Parameters as update functors see them: fp32 values and, where the model holds 16-bit ones, a rounded copy for it.
template <Number P = float>
struct ParameterRef {
  float* values;
  P* rounded;

  using StreamsOf = ParameterRef;
  TERSE_HD auto streams() { return updates(values) + writes(rounded); }
  TERSE_HD float operator[](index_t i) const { return values[i]; }
  TERSE_HD void set(index_t i, float x) const {
    values[i] = x;
    rounded[i] = narrowed<P>(x);
  }
};

/// Parameters in fp32: reads and writes them as they are.
template <>
struct ParameterRef<float> {
  float* values;

  using StreamsOf = ParameterRef;
  TERSE_HD auto streams() { return updates(values); }
  TERSE_HD float operator[](index_t i) const { return values[i]; }
  TERSE_HD void set(index_t i, float x) const { values[i] = x; }
};

TERSE_NUMERICS_END

}  // namespace terse

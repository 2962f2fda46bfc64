// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/half.hpp"
#include "terse/core/layout.hpp"
#include "terse/executor/streams.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// A view of the parameters for update functors: fp32 values and, if the model holds 16-bit parameters, their rounded copy.
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

/// A view of parameters in fp32.
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

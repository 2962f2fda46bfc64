// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/pick_coder.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// A coder V of picked values whose quantization error is dropped: the error feedback receives the exact picks, not the
/// decoded values. So its error is that of the selection alone, for any V. Use it for steps that use only the signs of
/// values.
///
///     Sparse<Largest, DropQuantizationError<UnitTernary>, PerSegment>        a pick's sign, 0 for 0, without a scale
///     Sparse<Largest, DropQuantizationError<UnitSign>, PerSegment>           one bit; 0 counts as positive: a unit of zeros is sent as ones
///
/// The values sent under an error feedback do NOT sum to the messages' sum. So sparse compressors with such values
/// break the laws `feedback law` and `mean tracking`. Wire and cost are those of V. Source: Nous Research, DisTrO in
/// the code of Psyche, 2025.
template <Compressor V>
struct DropQuantizationError : V {
  static_assert(
      !V::lossless,
      "terse: DropQuantizationError takes a quantizer (UnitSign, Uniform<...>): Dense loses nothing");
  static constexpr bool unbiased = false;
  static constexpr bool tracks = true;
};

/// The old name, which version 0.2 removes.
template <Compressor V>
using Dropping [[deprecated("its name is DropQuantizationError")]] = DropQuantizationError<V>;

namespace detail {

template <class V>
struct PickCoder<DropQuantizationError<V>> : PickCoder<V> {
  static constexpr bool drops_loss = true;
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse

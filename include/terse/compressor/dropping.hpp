// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/pick_coder.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Codes the values of picks as V does, and drops what that loses: the error feedback is told the picks as they were, not as they
/// are read. So its error is that of the selection alone, whatever V makes of the sizes: for values of which steps take the signs.
///
///     Sparse<Largest, Dropping<UnitTernary>, PerSegment>        a pick's sign, 0 of 0, and nothing for its size
///     Sparse<Largest, Dropping<UnitSign>, PerSegment>           one bit, by which 0 is positive: a unit of zeros is sent as ones
///
/// What is sent under an error feedback does NOT come to the messages' sum: of the laws of compressors sparse ones with such values
/// break `feedback law` and `mean tracking`. Wire and cost are those of V. Source: Nous Research, DisTrO in the code of Psyche, 2025.
template <Compressor V>
struct Dropping : V {
  static_assert(!V::lossless,
                "terse: Dropping takes a quantizer (UnitSign, Uniform<...>): Dense loses nothing");
  static constexpr bool unbiased = false;
  static constexpr bool tracks = true;
};

namespace detail {

template <class V>
struct PickCoder<Dropping<V>> : PickCoder<V> {
  static constexpr bool drops_loss = true;
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse

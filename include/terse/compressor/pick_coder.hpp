// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "terse/compressor/dense.hpp"
#include "terse/compressor/packed.hpp"
#include "terse/compressor/section_fault.hpp"
#include "terse/compressor/selection.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The picked values as a message for their coder, and as its error feedback, whose commit does nothing.
struct PickedValues {
  float* y;
  index_t begin;
  TERSE_HD Sample operator()(const Piece&, index_t i, bool) const { return {y[i - begin], 0}; }
  TERSE_HD float load(index_t i) const { return y[i - begin]; }
  TERSE_HD void commit(index_t, bool, float, float) const {}
};

/// A coder of the values of k picks: as fp32, or by a packed quantizer.
template <class Values>
struct PickCoder {
  static_assert(!Values::lossless, "terse: picks are coded by Dense or by a Packed quantizer");
  using Scale = typename Values::Scale;
  using Code = typename Values::Code;

  static constexpr bool drops_loss = false;
  static constexpr float limit = largest_scale_of<typename Values::Statistic>();
  static constexpr SectionFault beyond_limit = SectionFault::unlikely;

  TERSE_HD static index_t scales(index_t k) {
    return Values::units().whole ? 1 : Values::units().in_piece(k);
  }
  TERSE_HD static index_t scale_bytes(index_t k) {
    return std::is_empty_v<Scale> ? 0 : (static_cast<index_t>(sizeof(Scale)) * scales(k) + 7) / 8 * 8;
  }
  TERSE_HD static index_t bytes(index_t k) { return k == 0 ? 0 : scale_bytes(k) + code_bytes<Code::bits>(k); }
  /// Returns the number of floats at the beginning that must be within the limit.
  TERSE_HD static index_t floats(index_t k) {
    return k == 0 || std::is_empty_v<Scale> ? 0
                                            : scales(k) * static_cast<index_t>(sizeof(Scale) / sizeof(float));
  }

  template <Executor E>
  using Workspace = typename Values::template Workspace<E>;

  TERSE_HD static float read(const std::byte* wire, index_t k, index_t e) {
    Scale scale{};
    constexpr index_t size = Values::units().size;
    index_t unit = 0;
    if constexpr (size != 0) unit = e / size;
    if constexpr (!std::is_empty_v<Scale>)
      scale = load_from_wire<Scale>(wire + unit * static_cast<index_t>(sizeof(Scale)));
    const std::byte* codes = wire + scale_bytes(k);
    std::uint32_t code = 0;
    if constexpr (Code::bits < 8) {
      const std::byte* planes = codes + e / lanes * 8 * Code::bits + e % lanes / 8;
      for (int bit = 0; bit < Code::bits; ++bit)
        code |= (static_cast<std::uint32_t>(planes[8 * bit]) >> e % 8 & 1U) << bit;
    } else {
      code = load_from_wire<CodeElement<Code::bits>>(codes + e * (Code::bits / 8));
    }
    return Code::value(code, scale);
  }
};

template <>
struct PickCoder<Dense> {
  static constexpr bool drops_loss = false;
  static constexpr float limit = largest_finite;
  static constexpr SectionFault beyond_limit = SectionFault::not_finite;

  template <Executor E>
  struct Workspace {
    Workspace(E, const Dense&, const Range&) {}
  };

  TERSE_HD static index_t bytes(index_t k) { return code_bytes<32>(k); }
  TERSE_HD static index_t floats(index_t k) { return k; }
  TERSE_HD static float read(const std::byte* wire, index_t, index_t e) {
    return load_from_wire<float>(wire + 4 * e);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse

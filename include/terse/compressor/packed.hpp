// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "terse/compressor/concept.hpp"
#include "terse/core/draw.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Codes a materialized message and leaves the error behind: feedback.commit(i, y, value(code(y))).
template <class Q, class Feedback>
struct Quantize {
  Feedback feedback;
  TERSE_HD std::uint32_t operator()(const Piece&, index_t i, bool keep, typename Q::Statistic::Scale scale,
                                    std::uint32_t random) const {
    const float y = feedback.load(i);
    const std::uint32_t code = Q::code(y, scale, random);
    feedback.commit(i, keep, y, Q::value(code, scale));
    return code;
  }
};

}  // namespace detail

/// Makes a compressor of a scalar quantizer: statistic, packing, fusion with the residual, host and device.
///
/// Wire: one Scale per unit in piece order, padded to 8 bytes; then the codes of each piece, see
/// `code_bytes`. Cost: PerBlock reads the message once; the others once for the scale and once for the codes.
template <class Q, Granularity G>
struct Packed {
  static_assert(check_quantizer<Q>());
  static_assert(Q::bits >= 1 && Q::bits <= 8, "terse: a packed quantizer has 1 to 8 bits");

  using Statistic = typename Q::Statistic;
  using Scale = typename Statistic::Scale;
  static constexpr bool lossless = false;
  static constexpr bool unbiased = Q::unbiased;
  /// A unit may reach beyond a packet, so that `measure` comes before the first `encode`.
  static constexpr bool measured = G::units().size == 0;

  /// How packets are read.
  struct Code {
    static constexpr int bits = Q::bits;
    using Scale = Packed::Scale;
    TERSE_HD static float value(std::uint32_t code, Scale scale) { return Q::value(code, scale); }
  };

  static constexpr Units units() { return G::units(); }
  index_t scale_bytes(const Range& range) const {
    const auto bytes = static_cast<index_t>(sizeof(Scale)) * units().in_range(range);
    return range.pieces().empty() ? 0 : (bytes + 7) / 8 * 8;
  }
  index_t wire_bytes(const Range& range) const {
    index_t bytes = scale_bytes(range);
    for (const Piece& piece : range.pieces()) bytes += code_bytes<Q::bits>(piece.count);
    return bytes;
  }

  /// One packet's section, as a source for decoding.
  typename Packets<Code>::Source source(const Range& range, const std::byte* section, float weight) const {
    return {section + scale_bytes(range), reinterpret_cast<const Scale*>(section), weight};
  }

  /// Scales of all units of `range` from samples that `message` gives, once per element.
  template <Executor E, class Incoming, class Message>
  void measure(E executor, const Range& range, Mask<typename E::memory> mask, Incoming incoming,
               Message message, out<E> scratch, out<E, Scale> scales, std::uint32_t& bad) const {
    reduce<Statistic>(executor, range, units(), mask, incoming, message, scratch, scales, bad);
  }

  /// Writes one packet's section from the message that `feedback` holds; its scales stand in the section
  /// already.
  template <Executor E, class Feedback>
  void encode(E executor, const Range& range, Mask<typename E::memory> mask, Feedback feedback,
              std::byte* section, Draw draw) const {
    pack<Q::bits, Q::stochastic>(executor, range, units(), mask, detail::Quantize<Q, Feedback>{feedback},
                                 in<E, Scale>(scales(section), units().in_range(range)),
                                 section + scale_bytes(range), draw);
  }

  /// `measure` and `encode` in one, unit by unit.
  template <Executor E, class Incoming, class Message, class Feedback>
  void measure_and_encode(E executor, const Range& range, Mask<typename E::memory> mask, Incoming incoming,
                          Message message, Feedback feedback, out<E> scratch, std::byte* section, Draw draw,
                          std::uint32_t& bad) const {
    reduce_pack<Statistic, Q::bits, Q::stochastic>(
        executor, range, units(), mask, incoming, message, detail::Quantize<Q, Feedback>{feedback}, scratch,
        out<E, Scale>(scales(section), units().in_range(range)), section + scale_bytes(range), draw, bad);
  }

  static Scale* scales(std::byte* section) { return reinterpret_cast<Scale*>(section); }
};

TERSE_NUMERICS_END

}  // namespace terse

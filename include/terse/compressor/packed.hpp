// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "terse/compressor/concept.hpp"
#include "terse/compressor/quantizer_concept.hpp"
#include "terse/core/policy.hpp"
#include "terse/executor/placed_ranges.hpp"
#include "terse/executor/sinks.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// A code and its decoded value. A quantizer may have a `Coder`, made from a unit's scale. Its call (value, random)
/// returns both at once, so that `code` and `value` can share computations, and constants of a unit.
/// `Coder::Quantizer` names the quantizer.
struct Coded {
  std::uint32_t code;
  float value;
};

namespace detail {

/// The limit of scales: finite messages have norms below 2^64. Squares of the values that it scales are finite.
inline constexpr float largest_scale = 0x1.fffffep63F;
inline constexpr const char* unlikely_scale = "a scale that no finite message has";

/// Returns the largest scale of a statistic. If finite messages may have larger scales, the statistic states
/// `largest`.
template <class Statistic>
constexpr float largest_scale_of() {
  if constexpr (requires { Statistic::largest; }) return Statistic::largest;
  return largest_scale;
}

/// Checks whether these bytes are floats with magnitudes of at most `limit`.
inline bool all_within(float limit, const std::byte* floats, index_t count) {
  for (index_t k = 0; k < count; ++k) {
    float value;
    std::memcpy(&value, floats + 4 * k, sizeof value);
    if (!(magnitude(value) <= limit)) return false;
  }
  return true;
}

/// A coder of a unit's elements that calls a quantizer's two functions.
template <class Q>
class PlainCoder {
 public:
  TERSE_HD PlainCoder(typename Q::Statistic::Scale scale) : scale_(scale) {}
  TERSE_HD Coded operator()(float value, std::uint32_t random) const {
    const std::uint32_t code = Q::code(value, scale_, random);
    return {code, Q::value(code, scale_)};
  }

 private:
  typename Q::Statistic::Scale scale_;
};

template <class Q>
struct CoderOf {
  using type = PlainCoder<Q>;
};
// Excludes a Coder that Q has inherited, since Q may have changed `code` or `value`.
template <class Q>
requires std::is_same_v<typename Q::Coder::Quantizer, Q>
struct CoderOf<Q> {
  using type = typename Q::Coder;
};

/// A functor that codes a materialized message and commits the decoded values:
/// feedback.commit(i, keep, y, value(code(y))).
template <class Q, class Feedback>
struct Quantize {
  using Coder = typename CoderOf<Q>::type;
  Feedback feedback;
  using StreamsOf = Quantize;
  TERSE_HD auto streams() requires NamesStreams<Feedback> { return committed(feedback); }
  TERSE_HD static Coder prepare(typename Q::Statistic::Scale scale) { return scale; }
  TERSE_HD void enter(const Piece& piece) { terse::enter(feedback, piece); }
  TERSE_HD void enter_block(index_t first) { detail::enter_block(feedback, first); }
  TERSE_HD void leave_block(index_t first, int count) { detail::leave_block(feedback, first, count); }
  TERSE_HD std::uint32_t operator()(const Piece&, index_t i, bool keep, const Coder& coder,
                                    std::uint32_t random) const {
    const float y = feedback.load(i);
    const Coded coded = coder(y, random);
    feedback.commit(i, keep, y, coded.value);
    return coded.code;
  }
};

}  // namespace detail

/// A compressor made from a scalar quantizer: statistic, packing, fusion with the residual, host and device.
///
/// Wire: one Scale per unit in piece order, padded to 8 bytes; then the codes of each piece, see `code_bytes`. Cost:
/// PerBlock reads the message once; other granularities read it once for the scale and once for the codes.
template <class Q, Granularity G>
struct Packed {
  static_assert(check_quantizer<Q>());
  static_assert((Q::bits >= 1 && Q::bits <= 8) || Q::bits == 16,
                "terse: a packed quantizer has 1 to 8 bits, or 16");

  using Quantizer = Q;
  using Statistic = typename Q::Statistic;
  using Scale = typename Statistic::Scale;
  static_assert(std::is_trivially_copyable_v<Scale> && (std::is_empty_v<Scale> || sizeof(Scale) % 4 == 0),
                "terse: a Scale is nothing, a float, or a struct of floats");
  static constexpr bool lossless = false;
  static constexpr bool unbiased = Q::unbiased;
  static constexpr bool contractive = Traits<Q>::contractive;
  static constexpr bool tracks = Traits<Q>::tracks;
  /// A unit may extend beyond a packet, so call `measure` before the first `encode`.
  static constexpr bool measured = G::units().size == 0;

  /// The decoder of packets.
  struct Code {
    static constexpr int bits = Q::bits;
    using Scale = Packed::Scale;
    TERSE_HD static float value(std::uint32_t code, Scale scale) { return Q::value(code, scale); }
  };

  using Incoming = Packets<Code>;
  using Source = typename Incoming::Source;

  /// The scratch of the reductions and, if measured, the scales between measuring and encoding.
  template <Executor E>
  struct Workspace {
    buffer<float, typename E::memory> scratch;
    buffer<Scale, typename E::memory> scales;

    Workspace(E executor, const Packed&, const Range& covered)
        : scratch(reduction_scratch<Statistic>(executor, covered, units()), uninitialized) {
      if constexpr (measured)
        scales = buffer<Scale, typename E::memory>(units().in_range(covered), uninitialized);
    }
  };

  static constexpr Units units() { return G::units(); }
  index_t scale_bytes(const Range& range) const {
    if (std::is_empty_v<Scale> || range.pieces().empty()) return 0;
    return (static_cast<index_t>(sizeof(Scale)) * units().in_range(range) + 7) / 8 * 8;
  }
  index_t wire_bytes(const Range& range) const {
    index_t bytes = scale_bytes(range);
    for (const Piece& piece : range.pieces()) bytes += code_bytes<Q::bits>(piece.count);
    return bytes;
  }

  /// Returns one packet's section as a source for decoding.
  Source source(const Range& range, const std::byte* section, float weight, Draw) const {
    return {section + scale_bytes(range), reinterpret_cast<const Scale*>(section), weight};
  }
  static Incoming incoming(const Source* sources, int count) { return {sources, count, units()}; }
  /// Decoded values may have any size even if the scales are valid, so verbs that read them must check them.
  static constexpr bool unbounded = (std::is_empty_v<Scale> && Q::bits == 16) ||
                                    detail::largest_scale_of<Statistic>() > detail::largest_scale;

  /// Returns the number of floats at the beginning of a section, whose magnitudes must be possible scales of a message.
  index_t scale_floats(const Range& range) const {
    if (std::is_empty_v<Scale> || range.pieces().empty()) return 0;
    return units().in_range(range) * static_cast<index_t>(sizeof(Scale) / 4);
  }
  static constexpr float largest_scale() { return detail::largest_scale_of<Statistic>(); }
  /// Returns the fault of a section, or nullptr. Every code decodes if the scales are valid.
  const char* fault(const Range& range, const std::byte* section, index_t) const {
    return detail::all_within(detail::largest_scale_of<Statistic>(), section, scale_floats(range))
               ? nullptr
               : detail::unlikely_scale;
  }

  /// Computes the scales of all units of `range` from the samples of `message`, which it evaluates once per element.
  /// `also`: see the host's `reduce`.
  template <Executor E, class In, class Message, class... Also>
  void measure(E executor, Workspace<E>& workspace, const Range& range, Mask<typename E::memory> mask,
               In incoming, Message message, std::uint32_t* bad, const Also&... also) const {
    reduce<Statistic>(executor, range, units(), mask, incoming, message, workspace.scratch.all(),
                      workspace.scales.all(), bad, also...);
  }

  /// Writes one packet's section from the message that `feedback` holds. Its pieces are the measured units from
  /// `first_unit` on.
  template <Executor E, class Feedback>
  void encode(E executor, const Workspace<E>& workspace, const Range& range, Mask<typename E::memory> mask,
              Feedback feedback, index_t first_unit, const EncodeContext& context, std::byte* section) const {
    if (range.pieces().empty()) return;
    if constexpr (GridExecutor<E>) {
      const detail::PlacedRange here = place(range, first_unit, 0);
      encode_together(executor, workspace, detail::PlacedRanges(&here, 1), mask, feedback, context, section);
    } else {
      const auto all = write_scales(executor, workspace, range, first_unit, section);
      pack<Q::bits, Q::stochastic>(executor, range, units(), mask, detail::Quantize<Q, Feedback>{feedback},
                                   all, section + scale_bytes(range), context.local);
    }
  }
  /// Writes one packet's section from the codes that `measure` has written, and records the scales of its segments
  /// there.
  template <Executor E>
  void encode(E executor, const Workspace<E>& workspace, const Range& range,
              const detail::MeasuredCodes<Q::bits, Scale>& codes, index_t first_unit,
              std::byte* section) const {
    if (range.pieces().empty()) return;
    const auto all = write_scales(executor, workspace, range, first_unit, section);
    section += scale_bytes(range);
    index_t unit = 0;
    for (const Piece& piece : range.pieces()) {
      const index_t bytes = code_bytes<Q::bits>(piece.count);
      copy(executor, in<E, std::byte>(codes.at(piece.offset), bytes), out<E, std::byte>(section, bytes));
      section += bytes;
      if (piece.count > 0) codes.note(piece.segment, all[units().whole ? 0 : unit++]);
    }
  }
  /// Writes several packets' sections, each at its range's offset from `base`.
  template <GridExecutor E, class Feedback>
  void encode_together(E executor, const Workspace<E>& workspace, detail::PlacedRanges sections,
                       Mask<typename E::memory> mask, Feedback feedback, const EncodeContext& context,
                       std::byte* base) const requires(measured) {
    pack<Q::bits, Q::stochastic>(executor, sections, units(), mask, detail::Quantize<Q, Feedback>{feedback},
                                 in<E, Scale>(workspace.scales.all()), base, context.local);
  }
  /// Writes them from the codes that `measure` has written.
  template <GridExecutor E>
  void encode_together(E executor, const Workspace<E>& workspace, detail::PlacedRanges sections,
                       const detail::MeasuredCodes<Q::bits, Scale>& codes, std::byte* base) const {
    place_codes(executor, sections, units(), codes, in<E, Scale>(workspace.scales.all()), base);
  }
  /// Measures and encodes several packets' sections, in one kernel if it has room for a unit.
  template <GridExecutor E, class In, class Message, class Feedback, class Told>
  void encode_together(E executor, Workspace<E>& workspace, detail::PlacedRanges sections,
                       Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                       const EncodeContext& context, std::byte* base, std::uint32_t* bad, const Told&) const
      requires(!measured) {
    const detail::Quantize<Q, Feedback> quantize{feedback};
    if (reduce_pack_at_once<Statistic, Q::bits, Q::stochastic, longest>(
            executor, sections, units(), mask, incoming, message, quantize, static_cast<Scale*>(nullptr),
            base, context.local, bad))
      return;
    for (const detail::PlacedRange& placed : sections) {
      const Range& range = *placed.range;
      std::byte* const codes = base + placed.going;
      std::byte* const section = codes - scale_bytes(range);
      pad(executor, range, section);
      const out<E, Scale> all(scales(section), units().in_range(range));
      reduce<Statistic>(executor, range, units(), mask, incoming, message, workspace.scratch.all(), all, bad);
      pack<Q::bits, Q::stochastic>(executor, range, units(), mask, quantize, in<E, Scale>(all), codes,
                                   context.local);
    }
  }
  /// Returns the place of a section that begins `at` bytes after the base and has the measured units from `first_unit`
  /// on.
  detail::PlacedRange place(const Range& range, index_t first_unit, index_t at) const {
    return {&range, at + scale_bytes(range), std::is_empty_v<Scale> ? -1 : at,
            units().whole ? 0 : first_unit};
  }

  /// Measures and encodes unit by unit. Returns the section's bytes.
  template <Executor E, class In, class Message, class Feedback>
  index_t measure_and_encode(E executor, Workspace<E>& workspace, const Range& range,
                             Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                             const EncodeContext& context, std::byte* section, std::uint32_t* bad) const {
    if constexpr (GridExecutor<E>) {
      const detail::PlacedRange here = place(range, 0, 0);
      encode_together(executor, workspace, detail::PlacedRanges(&here, 1), mask, incoming, message, feedback,
                      context, section, bad, nullptr);
    } else {
      pad(executor, range, section);
      const out<E, Scale> all(scales(section), units().in_range(range));
      reduce_pack<Statistic, Q::bits, Q::stochastic>(
          executor, range, units(), mask, incoming, message, detail::Quantize<Q, Feedback>{feedback},
          workspace.scratch.all(), all, section + scale_bytes(range), context.local, bad);
    }
    return wire_bytes(range);
  }

 private:
  static constexpr index_t longest = G::units().size > 0 && G::units().size < detail::reduction_block
                                         ? G::units().size
                                         : detail::reduction_block;
  /// Zeroes the padding between the scales and the codes.
  template <Executor E>
  void pad(E executor, const Range& range, std::byte* section) const {
    if (const index_t bytes = scale_bytes(range); bytes > 0)
      fill(executor, out<E, std::byte>(section + bytes - 8, 8), std::byte{0});
  }
  /// Writes the measured scales of a section's units and returns their place in the section.
  template <Executor E>
  in<E, Scale> write_scales(E executor, const Workspace<E>& workspace, const Range& range, index_t first_unit,
                            std::byte* section) const {
    const index_t here = units().in_range(range);
    pad(executor, range, section);
    if constexpr (!std::is_empty_v<Scale>)
      copy(executor, in<E, Scale>(workspace.scales.all().part(units().whole ? 0 : first_unit, here)),
           out<E, Scale>(scales(section), here));
    return {scales(section), here};
  }
  static Scale* scales(std::byte* section) { return reinterpret_cast<Scale*>(section); }
};

namespace detail {
template <class Q, class G>
inline constexpr bool has_sound_parts<Packed<Q, G>> = Quantizer<Q>;
}

TERSE_NUMERICS_END

}  // namespace terse

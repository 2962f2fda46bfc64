// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/keyed.hpp"

namespace terse {

/// A keyed compressor that sends z modulo q = 2^Bits, z = round(x / step). The reader takes the number z step with that
/// residue that is nearest to its own value, the key. While |x - key| < bound(), the result is verifiably right. The
/// error is then at most step / 2 (Nearest), or below a step (Stochastic: x + U(-step/2, step/2) is rounded, which
/// makes it unbiased). x may have any size. A key beyond the bound is reported, see `verify`.
///
///     Lattice<8> lattice{.step = 1e-3F};                                      // reaches 0.1275
///     lattice.encode(executor, range, message, context, section, bad);        // the sender
///     if (lattice.verify(executor, range, section, key))                      // a reader: one pass, writes nothing
///       (void)lattice.decode(executor, range, section, key, use);             // use(piece, i, value)
///     lattice.decode(executor, range, section, key, use, wrong);              // on a device, without waiting
///
/// To get the decoded values of its packet, a sender decodes it with its own message as the key; the bits are those
/// of the readers.
///
/// Wire: a checksum of 8 bytes for every 4096 elements of a piece; then the codes of each piece, see `code_bytes`.
/// Source: Davies et al., "New bounds for distributed mean estimation and variance reduction", ICLR 2021, with the
/// cubic lattice.
template <int Bits, class Rounding = Nearest>
struct Lattice {
  using Grid = detail::Grid<Bits, Rounding>;
  static constexpr bool lossless = false;
  static constexpr bool keyed = true;
  static constexpr bool unbiased = Rounding::stochastic;
  static constexpr bool contractive = false;

  float step = 1e-3F;  ///< > 0

  void check() const { detail::check_grid_parameter("step", step); }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("step", static_cast<double>(step));
  }
  /// Returns the distance |x - key| below which decoding is safe: (q - 1) step / 2 with Nearest, (q - 2) step / 2 with
  /// Stochastic.
  double bound() const { return Grid::reach * static_cast<double>(step); }
  index_t wire_bytes(const Range& range) const { return detail::keyed_bytes<Grid>(range); }

  /// Writes the section of message(piece, i). If a value is not finite, or is 2^40 steps or more, sets `bad` to 1 and
  /// sends 0 in its place.
  template <Executor E, class Message>
  void encode(E executor, const Range& range, Message message, const EncodeContext& context,
              std::byte* section, std::uint32_t& bad) const {
    encode_keyed(executor, range, grid(), message, section, context.local, bad);
  }
  /// Checks whether the section decodes with key(piece, i): false if a key is not finite or too far from the sent
  /// value. Makes one pass over the keys, up to the first violation. The overload with `wrong`, in the executor's
  /// memory, sets `wrong` to 1 instead of returning false. The other one is for the host only.
  template <Executor E, class Key>
  [[nodiscard]] bool verify(E executor, const Range& range, const std::byte* section, Key key) const {
    return decode_keyed(executor, range, grid(), section, key, detail::NoUse{});
  }
  template <Executor E, class Key>
  void verify(E executor, const Range& range, const std::byte* section, Key key, std::uint32_t& wrong) const {
    decode_keyed(executor, range, grid(), section, key, detail::NoUse{}, wrong);
  }
  /// Calls use(piece, i, value) for each element and verifies in the same pass, with the result of `verify`. If it
  /// returns false, some of the values were wrong, but all were finite. `use` may overwrite the keys.
  template <Executor E, class Key, class Use>
  [[nodiscard]] bool decode(E executor, const Range& range, const std::byte* section, Key key,
                            Use use) const {
    return decode_keyed(executor, range, grid(), section, key, use);
  }
  template <Executor E, class Key, class Use>
  void decode(E executor, const Range& range, const std::byte* section, Key key, Use use,
              std::uint32_t& wrong) const {
    decode_keyed(executor, range, grid(), section, key, use, wrong);
  }
  /// Decodes several packets on a device, with wrong[p] for packet p: terse/device/compressor/keyed.hpp.
  template <GridExecutor E, class Key, class Use>
  void decode_together(E executor, const Range& range, const detail::KeyedPackets& packets, Key key, Use use,
                       std::uint32_t* wrong) const {
    decode_keyed(executor, range, grid(), packets, key, use, wrong);
  }

 private:
  Grid grid() const { return Grid(static_cast<double>(step)); }
};

}  // namespace terse

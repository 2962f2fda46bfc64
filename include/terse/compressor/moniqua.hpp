// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/keyed.hpp"

namespace terse {

/// The lattice whose step follows from the largest distance. Let q = 2^Bits, d = 1 / (2 q) (Nearest) or 1 / q
/// (Stochastic), and B = 2 bound / (1 - 2 d). It sends round(x / B * q) modulo q, which is x / B modulo 1 on the
/// circle's q levels. The reader takes the number of that residue modulo B that is nearest to the key. For all |x -
/// key| <= bound the result is verifiably right. The error is then at most B d: bound / (q - 1), or 2 bound / (q - 2).
/// `verify`, `decode`, wire and cost are those of Lattice.
///
///     Moniqua<8> moniqua{.bound = 0.05F};
///
/// Source: Lu and De Sa, "Moniqua: modulo quantized communication in decentralized SGD", ICML 2020.
template <int Bits, class Rounding = Nearest>
struct Moniqua {
  using Grid = detail::Grid<Bits, Rounding>;
  static constexpr bool lossless = false;
  static constexpr bool keyed = true;
  static constexpr bool unbiased = Rounding::stochastic;
  static constexpr bool contractive = false;

  float bound = 1;  ///< theta: the largest |x - key|; > 0

  void check() const { detail::check_grid_parameter("bound", bound); }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("bound", static_cast<double>(bound));
  }
  /// Returns B / q = bound / reach, times 1 + 2^-20, so that a bound measured in fp32 is itself safe.
  double step() const { return static_cast<double>(bound) / Grid::reach * (1 + 0x1p-20); }
  index_t wire_bytes(const Range& range) const { return detail::keyed_bytes<Grid>(range); }

  /// Encodes as Lattice::encode does.
  template <Executor E, class Message>
  void encode(E executor, const Range& range, Message message, const EncodeContext& context,
              std::byte* section, std::uint32_t& bad) const {
    encode_keyed(executor, range, Grid(step()), message, section, context.local, bad);
  }
  /// Verifies as Lattice::verify does.
  template <Executor E, class Key>
  [[nodiscard]] bool verify(E executor, const Range& range, const std::byte* section, Key key) const {
    return decode_keyed(executor, range, Grid(step()), section, key, detail::NoUse{});
  }
  template <Executor E, class Key>
  void verify(E executor, const Range& range, const std::byte* section, Key key, std::uint32_t& wrong) const {
    decode_keyed(executor, range, Grid(step()), section, key, detail::NoUse{}, wrong);
  }
  /// Decodes as Lattice::decode does.
  template <Executor E, class Key, class Use>
  [[nodiscard]] bool decode(E executor, const Range& range, const std::byte* section, Key key,
                            Use use) const {
    return decode_keyed(executor, range, Grid(step()), section, key, use);
  }
  template <Executor E, class Key, class Use>
  void decode(E executor, const Range& range, const std::byte* section, Key key, Use use,
              std::uint32_t& wrong) const {
    decode_keyed(executor, range, Grid(step()), section, key, use, wrong);
  }
  /// Decodes several packets on a device, with wrong[p] for packet p: terse/device/compressor/keyed.hpp.
  template <GridExecutor E, class Key, class Use>
  void decode_together(E executor, const Range& range, const detail::KeyedPackets& packets, Key key, Use use,
                       std::uint32_t* wrong) const {
    decode_keyed(executor, range, Grid(step()), packets, key, use, wrong);
  }
};

}  // namespace terse

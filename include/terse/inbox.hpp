// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/plan.hpp"

namespace terse {

namespace detail {

[[noreturn]] TERSE_COLD inline void throw_full_inbox(int capacity) {
  throw usage_error("an Inbox was made for " + std::to_string(capacity) +
                    " packets and is given one more: its constructor takes the most that a verb shall sum");
}

}  // namespace detail

/// Packets that a verb decodes, for both kinds of pieces. If more than `capacity` are added between two calls of
/// `clear`, usage_error is thrown.
template <Compressor C>
class Inbox {
 public:
  explicit Inbox(int capacity)
      : compressed_(C::lossless ? 0 : static_cast<std::size_t>(capacity)),
        dense_(static_cast<std::size_t>(capacity)) {}
  void clear() { count_ = 0; }
  /// Makes verbs check for values that are not finite, see Packets::damage.
  void watch(std::uint64_t* damage) { damage_ = damage; }
  /// Adds a packet. `shared` is the round's draw for selections.
  void add(const C& compressor, const Portion& portion, const std::byte* packet, const StepDraw& shared,
           float weight = 1, std::uint32_t origin = 0) {
    if (static_cast<std::size_t>(count_) == dense_.size()) detail::throw_full_inbox(count_);
    const auto place = static_cast<std::size_t>(count_++);
    if constexpr (!C::lossless) {
      compressed_[place] = compressor.source(portion.compressed, packet + portion.section_at, weight, shared);
      if constexpr (requires { compressed_[place].origin; }) compressed_[place].origin = origin;
    }
    dense_[place] = {packet + portion.dense_at, nullptr, weight, origin};
  }
  auto compressed() {
    if constexpr (C::lossless) {
      return NoPackets{};
    } else {
      auto incoming = C::incoming(compressed_.data(), count_);
      if constexpr (requires { C::unbounded; })
        if (C::unbounded) incoming.damage = damage_;
      return incoming;
    }
  }
  Packets<Dense::Code> dense() const { return {dense_.data(), count_, {}, damage_}; }

 private:
  template <class Any>
  static auto source_type() {
    if constexpr (Any::lossless)
      return typename Packets<Dense::Code>::Source{};
    else
      return typename Any::Source{};
  }

  std::vector<decltype(source_type<C>())> compressed_;
  std::vector<Packets<Dense::Code>::Source> dense_;
  std::uint64_t* damage_ = nullptr;
  int count_ = 0;
};

/// An inbox without packets.
struct EmptyInbox {
  static constexpr NoPackets compressed() { return {}; }
  static constexpr NoPackets dense() { return {}; }
};

}  // namespace terse

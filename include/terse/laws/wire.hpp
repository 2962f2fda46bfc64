// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/laws/report.hpp"
#include "terse/laws/subject.hpp"

// Laws of packets: sizes, written bytes, and decoding of arbitrary bytes.

namespace terse::laws {

/// Checks that a selection stays within the memory that it states. Its guard throws, see guarded_selection.hpp.
inline std::string picks_violation(const Subject& subject, const Example& example) {
  const Arena arena = subject.arena(example);
  const auto rank = subject.rank(arena);
  try {
    for (std::size_t m = 0; m < example.messages.size(); ++m)
      rank->encode(arena.spread(example.messages[m]), moment(example, m));
  } catch (const std::logic_error& broken) {
    return broken.what();
  }
  return "";
}

/// Checks that a section has wire_bytes(range) bytes, or at most this number if `variable`; all sizes are multiples
/// of 8.
inline std::string wire_size_violation(const Subject& subject, const Example& example) {
  const Arena arena = subject.arena(example);
  const auto rank = subject.rank(arena);
  for (std::size_t m = 0; m < example.messages.size(); ++m) {
    const Sent sent = rank->encode(arena.spread(example.messages[m]), moment(example, m));
    for (int p = 0; p < rank->parts(); ++p) {
      const index_t most = rank->packet_most(p), bytes = sent[static_cast<std::size_t>(p)].bytes;
      if (rank->section_most(p) % 8 != 0)
        return say("wire_bytes is %lld, not a multiple of 8", static_cast<long long>(rank->section_most(p)));
      const index_t section = rank->section_most(p) - (most - bytes);
      const bool right = subject.claims().variable ? section >= 0 && bytes <= most : bytes == most;
      if (!right || bytes % 8 != 0)
        return say("packet %d: wire_bytes returns %lld bytes%s, encode returns %lld", p,
                   static_cast<long long>(rank->section_most(p)),
                   subject.claims().variable ? " at most, in multiples of 8" : "",
                   static_cast<long long>(section));
    }
  }
  return "";
}

/// Checks that nothing outside the packet is written.
inline std::string wire_bounds_violation(const Subject& subject, const Example& example) {
  const Arena arena = subject.arena(example);
  const auto rank = subject.rank(arena);
  for (std::size_t m = 0; m < example.messages.size(); ++m)
    for (const std::byte fill : {std::byte{0x00}, std::byte{0xFF}})
      for (const Packet& packet : rank->encode(arena.spread(example.messages[m]), moment(example, m), fill))
        if (!packet.intact())
          return say("encode wrote before the section or beyond its wire_bytes = %lld bytes",
                     static_cast<long long>(rank->section_most(0)));
  return "";
}

/// Checks that every byte of a packet is written, so that a buffer's old contents are not sent.
inline std::string determined_bytes_violation(const Subject& subject, const Example& example) {
  const Arena arena = subject.arena(example);
  const auto one = subject.rank(arena), other = subject.rank(arena);
  for (std::size_t m = 0; m < example.messages.size(); ++m) {
    const Values message = arena.spread(example.messages[m]);
    const std::string found = difference(one->encode(message, moment(example, m), std::byte{0x00}),
                                         other->encode(message, moment(example, m), std::byte{0xFF}));
    if (!found.empty()) return "into buffers of zeros and of ones: " + found;
  }
  return "";
}

/// A packet in a memory block of exactly its size, so that the address sanitizer detects every byte out of bounds.
struct ExactPacket {
  std::unique_ptr<std::byte[]> bytes;
  index_t size;

  ExactPacket(const std::byte* from, index_t available, index_t size_)
      : bytes(new std::byte[static_cast<std::size_t>(size_)]), size(size_) {
    const index_t taken = std::min(available, size);
    if (taken > 0) std::memcpy(bytes.get(), from, static_cast<std::size_t>(taken));
    for (index_t i = taken; i < size; ++i) bytes[static_cast<std::size_t>(i)] = std::byte{0};
  }
};

/// Checks that `fault` accepts the compressor's own sections, and that any accepted section decodes within bounds to
/// finite numbers.
inline std::string arbitrary_bytes_violation(const Subject& subject, const Example& example) {
  constexpr std::uint64_t trials = 24;
  constexpr float wild[] = {std::numeric_limits<float>::max(),
                            -std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min(),
                            -1.0F,
                            0x1p126F,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
  const Arena arena = subject.arena(example);
  const auto rank = subject.rank(arena);
  const Draw draw = Draw::shared(example.seed, example.step, Purpose::user);
  const Sent sent = rank->encode(arena.spread(example.messages.front()), moment(example));
  std::uint64_t drawn = 0;
  const auto below = [&](index_t bound) {
    return static_cast<index_t>(draw.below(static_cast<std::uint64_t>(bound), ++drawn));
  };
  for (int p = 0; p < rank->parts(); ++p) {
    const Packet& own = sent[static_cast<std::size_t>(p)];
    const index_t begin = rank->section_at(p), most = rank->section_most(p);
    const index_t length = most - (own.most() - own.bytes);
    const ExactPacket copy(own.data(), own.bytes, own.bytes);
    if (const char* fault = rank->fault(p, copy.bytes.get() + begin, length))
      return std::string("`fault` refuses the compressor's own section: ") + fault;
    for (std::uint64_t trial = 0; trial < trials && most > 0; ++trial) {
      index_t size = length;
      std::string done = "random bytes";
      const auto kind = subject.claims().variable ? trial % 5 : trial % 3;
      if (kind == 3) size = below(length + 1);
      if (kind == 4) size = length + 1 + below(16);
      ExactPacket packet(own.data(), begin + length, own.bytes + size - length);
      std::byte* section = packet.bytes.get() + begin;
      if (kind == 0)
        for (index_t i = 0; i < size; ++i) section[i] = static_cast<std::byte>(below(256));
      if (kind == 1 && size > 0) {
        done = "some bytes of an own section overwritten";
        for (index_t flips = 1 + below(4); flips > 0; --flips)
          section[below(size)] = static_cast<std::byte>(below(256));
      }
      if (kind == 2 && size >= 4) {
        const float value = wild[below(std::size(wild))];
        const index_t word = trial < 9 ? 0 : below(size / 4);
        done = say("word %lld of an own section is ", static_cast<long long>(word)) + say(value);
        std::memcpy(section + 4 * word, &value, sizeof value);
      }
      const char* fault = rank->fault(p, section, size);
      if (kind >= 3 && size != length && fault == nullptr)
        return say("`fault` takes an own section of %lld bytes when it has %lld",
                   static_cast<long long>(length), static_cast<long long>(size));
      if (fault != nullptr) continue;
      std::vector<const std::byte*> packets;
      for (const Packet& part : sent) packets.push_back(part.data());
      packets[static_cast<std::size_t>(p)] = packet.bytes.get();
      Values sum;
      rank->decode(std::vector<std::vector<const std::byte*>>{packets}, {1.0F}, moment(example), sum);
      if (const std::string found = not_finite(arena.gather(sum)); !found.empty())
        return done + ": `fault` takes the section, which decodes to " + found;
    }
  }
  return "";
}

/// Returns the laws of packets: picks, size, bounds, determined bytes, and arbitrary bytes.
inline std::vector<Law> wire_laws(const Subject& subject, const Options& options) {
  const auto pool = examples(options.seed, options.magnitude, 2);
  const auto on = [&subject](auto violation) {
    return [&subject, violation](const Example& example) { return violation(subject, example); };
  };
  return {{"picks", subject.claims().selects, pool, on(picks_violation), true, true},
          {"wire size", true, pool, on(wire_size_violation)},
          {"wire bounds", true, pool, on(wire_bounds_violation)},
          {"determined bytes", true, pool, on(determined_bytes_violation)},
          {"arbitrary bytes", true, pool, on(arbitrary_bytes_violation)}};
}

}  // namespace terse::laws

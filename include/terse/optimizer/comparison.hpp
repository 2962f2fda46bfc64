// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/layout.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/channel.hpp"
#include "terse/transport/collectives.hpp"

namespace terse::detail {

/// Where ranks that should be alike are not.
struct Apart {
  int rank,
      from;  ///< the first that differs from most, or from rank 0 where there are as many of either; one of those
  std::string arena, segment;
};

[[noreturn]] TERSE_COLD void throw_other_start(const Apart& apart, int rank);
/// `compared`: the last step after which all were alike; 0: none was looked at.
[[noreturn]] TERSE_COLD void throw_drifted(const Apart& apart, std::uint64_t compared, int rank,
                                           std::uint64_t step);

/// Compares arenas of a layout among ranks. Padding does not count.
class Comparison {
 public:
  explicit Comparison(Channel& channel) : hashes_(channel) {}

  /// `arenas(visit)` calls visit(name, view) for each of them, of layout.size() elements. Reads them once and sends 12 bytes to each
  /// peer; more only where they differ. Collective.
  template <class Arenas>
  std::optional<Apart> operator()(Channel& channel, const Layout& layout, const Arenas& arenas) {
    if (channel.size() == 1) return {};
    await_messages(channel);
    std::uint64_t mine = 0;
    arenas([&](const char*, auto arena) {
      for (const Segment& segment : layout.segments()) mine = mix_hash(mine, hash_of_segment(segment, arena));
    });
    if (!find_odd(hashes_(channel, mine, Phase::setup))) return {};
    return find(channel, layout, arenas);
  }

 private:
  template <class Arena>
  static std::uint64_t hash_of_segment(const Segment& segment, Arena arena) {
    return hash_of(arena.part(segment.offset, segment.count));
  }
  /// All have seen that hashes differ, and look closer.
  template <class Arenas>
  TERSE_COLD std::optional<Apart> find(Channel& channel, const Layout& layout, const Arenas& arenas) {
    std::optional<Apart> apart;
    arenas([&](const char* name, auto arena) {
      for (const Segment& segment : layout.segments()) {
        if (apart) return;
        apart = find_odd(hashes_(channel, hash_of_segment(segment, arena), Phase::setup));
        if (apart) apart->arena = name, apart->segment = segment.name;
      }
    });
    return apart;
  }
  static std::optional<Apart> find_odd(std::span<const std::uint64_t> all);

  Assembly<std::uint64_t, Channel> hashes_;
};

/// Keeps ranks that should be alike from going on when they are not: once before the first step, and then as often as the
/// user asks. Collective.
class Replicas {
 public:
  explicit Replicas(Channel& channel) : comparison_(channel) {}

  /// Before the first step; `arenas` as for Comparison.
  template <class Arenas>
  void check_start(Channel& channel, const Layout& layout, const Arenas& arenas) {
    if (const auto apart = comparison_(channel, layout, arenas)) throw_other_start(*apart, channel.rank());
  }
  /// After each step; alike(): whether ranks should be alike now, which waits for the next meeting of those that train apart.
  template <class Alike, class Arenas>
  void check_after(Channel& channel, const Layout& layout, std::uint64_t steps, std::uint64_t every,
                   const Alike& alike, const Arenas& arenas) {
    if (every == 0) return;
    due_ = due_ || steps % every == 0;
    if (!due_ || !alike()) return;
    due_ = false;
    if (const auto apart = comparison_(channel, layout, arenas))
      throw_drifted(*apart, compared_, channel.rank(), steps);
    compared_ = steps;
  }

 private:
  Comparison comparison_;
  bool due_ = false;
  std::uint64_t compared_ = 0;  // the last step after which all were alike
};

}  // namespace terse::detail

#ifndef TERSE_SEPARATE
#include "terse/optimizer/comparison.ipp"
#endif

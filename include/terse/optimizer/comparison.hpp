// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/layout.hpp"
#include "terse/transport/agreement.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/channel.hpp"
#include "terse/transport/collectives.hpp"

namespace terse::detail {

/// A difference between ranks that should be equal, and its place.
struct Apart {
  int rank,
      from;  ///< the first rank that differs from the majority (in a tie, from rank 0's value); a rank of the majority
  std::string arena, segment;
};

[[noreturn]] TERSE_COLD void throw_other_start(const Apart& apart, int rank);
/// Throws the error of ranks that differ after `step`. `compared` is the last step after which all were equal, or 0 before the
/// first comparison.
[[noreturn]] TERSE_COLD void throw_drifted(const Apart& apart, std::uint64_t compared, int rank,
                                           std::uint64_t step);

/// A comparison of arenas of a layout between ranks. Ignores padding.
class Comparison {
 public:
  explicit Comparison(Channel& channel) : hashes_(channel) {}

  /// Returns the first difference, if any. `arenas(visit)` calls visit(name, view) for each arena, of layout.size() elements. Reads
  /// the arenas once and sends 12 bytes to each peer; more only if they differ. Collective.
  template <class Arenas>
  std::optional<Apart> operator()(Channel& channel, const Layout& layout, const Arenas& arenas) {
    if (channel.size() == 1) return {};
    await_messages(channel);
    Look look{.comparison = *this, .channel = channel, .layout = layout, .apart = {}};
    arenas(Visit{&look});
    look.closer = find_odd(hashes_(channel, look.mine, Phase::setup)).has_value();
    if (look.closer) arenas(Visit{&look});
    if (look.apart) meet_before_error(channel);
    return std::move(look.apart);
  }

 private:
  struct Look {
    Comparison& comparison;
    Channel& channel;
    const Layout& layout;
    bool closer = false;
    std::uint64_t mine = 0;
    std::optional<Apart> apart;
  };
  /// Hashes arenas; after a difference between the ranks' hashes, compares them segment by segment.
  struct Visit {
    Look* look;

    template <class Arena>
    void operator()(const char* name, Arena arena) const {
      for (const Segment& segment : look->layout.segments()) {
        const std::uint64_t hash = hash_of(arena.part(segment.offset, segment.count));
        look->mine = mix_hash(look->mine, hash);
        if (look->closer && !look->apart) look->comparison.compare(*look, name, segment.name, hash);
      }
    }
  };
  TERSE_COLD void compare(Look& look, const char* arena, const std::string& segment, std::uint64_t hash);
  static std::optional<Apart> find_odd(std::span<const std::uint64_t> all);

  Assembly<std::uint64_t, Channel> hashes_;
};

/// Stops replicas that differ. It compares them once before the first step, and then as often as the user asks.
/// Collective.
class Replicas {
 public:
  explicit Replicas(Channel& channel) : comparison_(channel) {}

  /// Compares replicas before the first step; `arenas` as for Comparison.
  template <class Arenas>
  void check_start(Channel& channel, const Layout& layout, const Arenas& arenas) {
    if (const auto apart = comparison_(channel, layout, arenas)) throw_other_start(*apart, channel.rank());
  }
  /// Compares replicas after every `every` steps. If ranks differ by design after this step (`alike` = false), the comparison is
  /// postponed to their next synchronization.
  template <class Arenas>
  void check_after(Channel& channel, const Layout& layout, std::uint64_t steps, std::uint64_t every,
                   bool alike, const Arenas& arenas) {
    if (every == 0) return;
    due_ = due_ || steps % every == 0;
    if (!due_ || !alike) return;
    due_ = false;
    if (const auto apart = comparison_(channel, layout, arenas))
      throw_drifted(*apart, compared_, channel.rank(), steps);
    compared_ = steps;
  }

 private:
  Comparison comparison_;
  bool due_ = false;
  std::uint64_t compared_ = 0;  // the last step after which all were equal
};

}  // namespace terse::detail

#ifndef TERSE_SEPARATE
#include "terse/optimizer/comparison.ipp"
#endif

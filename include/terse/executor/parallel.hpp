// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "terse/executor/host.hpp"
#include "terse/executor/team.hpp"

namespace terse::executor {

/// An executor that runs functors as `host` does, with the host's bits, on all threads of a team. Its copies share the
/// team. Several threads call a functor at once, each with a separate copy. Through its pointers it may write only its
/// own elements. Sparse, low-rank, keyed and tiled compressors, StoredResidual and matrix preconditioners have no
/// parallel form and don't compile.
struct parallel {
  using memory = terse::memory::host;
  static constexpr bool team_of_threads = true;

  /// Makes a team of `threads` threads, by default one for each processor that the calling thread may run on. Throws
  /// as Team does.
  explicit parallel(int threads = Team::available()) : team(std::make_shared<Team>(threads)) {}

  int threads() const { return team->size(); }

  std::shared_ptr<Team> team;
  /// The minimum number of elements that threads share: below it, waking them takes longer than they save.
  index_t shared_from = index_t{1} << 18;
};

}  // namespace terse::executor

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

inline bool goes_to_team(const executor::parallel& ex, index_t elements) {
  return elements >= ex.shared_from && ex.threads() > 1;
}

/// The number of shares per thread: several, so that late threads leave some to the others.
inline constexpr index_t shares_a_thread = 4;

/// Calls act(share, thread) for shares that together are all of so many elements.
template <class Act>
void in_shares(const executor::parallel& ex, index_t elements, const Act& act) {
  const index_t shares = shares_a_thread * ex.threads();
  ex.team->run(static_cast<int>(shares), [&](int k, int thread) {
    act(ThreadShare{elements * k / shares, elements * (k + 1) / shares}, thread);
  });
}

/// The floats of scratch for a block's results.
template <class Statistic>
inline constexpr index_t result_floats = Statistic::width + 1;

/// Returns the place in scratch of a unit's block results. Results of earlier units end at or before this place.
template <class Statistic>
index_t results_at(const UnitPart& part) {
  return result_floats<Statistic> * (part.passed / reduction_block + part.unit);
}

/// Runs both passes of a reduction by a team: first blocks in shares, then units, also in shares, or the one unit of
/// the whole range. Blocks and units are joined as on the host.
template <class Statistic, class Incoming, class F, class Masked, class Also>
void reduce_in_shares(const executor::parallel& ex, const Range& range, Units units, Masked mask,
                      Incoming incoming, const F& f, float* scratch, typename Statistic::Scale* scales,
                      std::uint32_t* bad, const Also& also) {
  constexpr bool stores = std::is_same_v<Also, StoreSamples>;
  std::atomic<index_t> all_kept = 0;
  std::atomic<bool> blocks_left = false;
  in_shares(ex, range.elements(), [&](ThreadShare share, int) {
    Cursor<Incoming> cursor(incoming);
    CodePlace<32> place{nullptr};
    if constexpr (stores) place.wire = reinterpret_cast<std::byte*>(also.wire);
    index_t taking_part = 0;
    bool longer = false;
    const auto run_part = [&](const Piece& piece, const UnitPart& part) {
      const index_t blocks = reduction_blocks(part.end - part.begin);
      const auto reduce_to = [&](float* results) {
        const auto reduce_also = [&](const auto& here) {
          reduce_blocks<Statistic>(piece, part.begin, part.first, part.last, mask, cursor, f, results, blocks,
                                   here);
        };
        if constexpr (stores)
          reduce_also(StoreSamples{reinterpret_cast<float*>(place.wire)});
        else
          reduce_also(also);
      };
      if constexpr (stores)
        if (part.last == piece.count) end_floats(place.wire, piece.count);
      if (units.whole) taking_part += kept(piece, part.first, part.last, mask);
      if (units.whole || blocks > 1) {
        longer = true;
        return reduce_to(scratch + results_at<Statistic>(part));
      }
      Totals<Statistic> totals;
      reduce_to(totals.data());
      scales[part.unit] = finish_unit<Statistic>(totals.data(), kept(piece, part.begin, part.end, mask), bad);
    };
    if constexpr (stores)
      for_each_unit(range, units, share, reduction_block, run_part, cursor, place);
    else
      for_each_unit(range, units, share, reduction_block, run_part, cursor);
    all_kept += taking_part;
    if (longer) blocks_left = true;
  });
  if (!blocks_left) return;
  const auto join = [&](const UnitPart& part) {
    return join_unit<Statistic>(scratch + results_at<Statistic>(part),
                                reduction_blocks(part.end - part.begin));
  };
  if (units.whole) {
    Totals<Statistic> all = no_totals<Statistic>();
    for_each_unit(range, units, AllOfIt{}, 0, [&](const Piece&, const UnitPart& part) {
      join_results<Statistic>(all.data(), 1, join(part).data(), 1);
    });
    scales[0] = finish_unit<Statistic>(all.data(), all_kept, bad);
    return;
  }
  in_shares(ex, range.elements(), [&](ThreadShare share, int) {
    for_each_unit(range, units, share, 0, [&](const Piece& piece, const UnitPart& part) {
      if (part.end - part.begin <= reduction_block) return;
      scales[part.unit] =
          finish_unit<Statistic>(join(part).data(), kept(piece, part.begin, part.end, mask), bad);
    });
  });
}

}  // namespace detail

/// Returns the floats of scratch on the host: for the results of all blocks, or for a unit of each thread if that is
/// more.
template <class Statistic>
index_t reduction_scratch(const executor::parallel& ex, const Range& range, Units units) {
  index_t longest = 0;
  for (const Piece& piece : range.pieces())
    longest = std::max(longest, std::min(detail::unit_size(piece, units), piece.count));
  const index_t own = detail::result_floats<Statistic> * detail::reduction_blocks(longest);
  const auto walked = units.whole ? static_cast<index_t>(range.pieces().size()) : units.in_range(range);
  const index_t shared =
      units.whole || longest > detail::reduction_block
          ? detail::result_floats<Statistic> * (range.elements() / detail::reduction_block + walked)
          : 0;
  return std::max({reduction_scratch<Statistic>(executor::host{}, range, units), own * ex.threads(), shared});
}

/// Calls f as the host's `for_each` does, from several threads at the same time.
template <class Incoming, class F, class Masked = HostMask>
void for_each(const executor::parallel& ex, const Range& range, Masked mask, Incoming incoming, F f) {
  if (!detail::goes_to_team(ex, range.elements()))
    return for_each(executor::host{}, range, mask, incoming, f);
  detail::in_shares(ex, range.elements(), [&](detail::ThreadShare share, int) {
    detail::for_each_of(range, share, mask, incoming, f);
  });
}

/// Reduces as the host does, to the bit, since it joins blocks' results in the host's order.
template <class Statistic, class Incoming, class F, class Masked = HostMask, class Also = detail::JoinOnly>
void reduce(const executor::parallel& ex, const Range& range, Units units, Masked mask, Incoming incoming,
            F f, out<executor::parallel> scratch, out<executor::parallel, typename Statistic::Scale> scales,
            std::uint32_t* bad, const Also& also = {}) {
  if (!detail::goes_to_team(ex, range.elements()))
    return reduce<Statistic>(executor::host{}, range, units, mask, incoming, f, scratch, scales, bad, also);
  detail::reduce_in_shares<Statistic>(ex, range, units, mask, incoming, f, scratch.data(), scales.data(), bad,
                                      also);
}

/// Packs as the host does.
template <int Bits, bool Stochastic, class Scale, class F>
void pack(const executor::parallel& ex, const Range& range, Units units, HostMask mask, F f,
          in<executor::parallel, Scale> scales, std::byte* wire, Draw draw) {
  if (!detail::goes_to_team(ex, range.elements()))
    return pack<Bits, Stochastic>(executor::host{}, range, units, mask, f, scales, wire, draw);
  detail::in_shares(ex, range.elements(), [&](detail::ThreadShare share, int) {
    detail::pack_part<Bits, Stochastic>(range, share, units, mask, f, scales.data(), wire, draw);
  });
}

/// Reduces and packs as the host does; each thread takes whole units.
template <class Statistic, int Bits, bool Stochastic, class Incoming, class F, class G>
void reduce_pack(const executor::parallel& ex, const Range& range, Units units, HostMask mask,
                 Incoming incoming, F f, G g, out<executor::parallel> scratch,
                 out<executor::parallel, typename Statistic::Scale> scales, std::byte* wire, Draw draw,
                 std::uint32_t* bad) {
  if (!detail::goes_to_team(ex, range.elements()))
    return reduce_pack<Statistic, Bits, Stochastic>(executor::host{}, range, units, mask, incoming, f, g,
                                                    scratch, scales, wire, draw, bad);
  const index_t own = scratch.size() / ex.threads();
  detail::in_shares(ex, range.elements(), [&](detail::ThreadShare share, int k) {
    detail::reduce_pack_part<Statistic, Bits, Stochastic>(
        range, share, units, mask, incoming, f, g, scratch.data() + own * k, scales.data(), wire, draw, bad);
  });
}

/// Stores as the host does, to the bit.
template <class Statistic, class Incoming, class F>
void store(const executor::parallel& ex, const Range& range, Incoming incoming, F f, std::byte* wire,
           out<executor::parallel> scratch, out<executor::parallel, typename Statistic::Scale> scale,
           std::uint32_t* bad) {
  if (!detail::goes_to_team(ex, range.elements()))
    return store<Statistic>(executor::host{}, range, incoming, f, wire, scratch, scale, bad);
  detail::reduce_in_shares<Statistic>(ex, range, Units{0, true}, NoMask{}, incoming, f, scratch.data(),
                                      scale.data(), bad,
                                      detail::StoreSamples{reinterpret_cast<float*>(wire)});
}

/// Calls f(piece, i) as the host's `for_each` does, from several threads at the same time.
template <class F>
void for_each(const executor::parallel& ex, const Range& range, F f) {
  for_each(ex, range, NoMask{}, NoPackets{}, detail::WithoutMask<F>{f});
}

/// Copies as the host does.
template <class T>
void copy(const executor::parallel& ex, in<executor::parallel, T> from, out<executor::parallel, T> to) {
  if (!detail::goes_to_team(ex, from.size())) return copy(executor::host{}, from, to);
  detail::in_shares(ex, from.size(), [&](detail::ThreadShare share, int) {
    const index_t count = share.last - share.first;
    copy(executor::host{}, from.part(share.first, count), to.part(share.first, count));
  });
}

/// Copies as the host's `put` does, on the calling thread.
template <class T>
void put(const executor::parallel&, view<const T> from, out<executor::parallel, T> to) {
  copy(executor::host{}, from, to);
}

/// Copies as the host's `fetch` does, on the calling thread.
template <class T>
void fetch(const executor::parallel&, in<executor::parallel, T> from, view<T> to) {
  copy(executor::host{}, from, to);
}

/// Sets all elements to `value`, as the host does.
template <class T>
void fill(const executor::parallel& ex, out<executor::parallel, T> to, std::type_identity_t<T> value) {
  if (!detail::goes_to_team(ex, to.size())) return fill(executor::host{}, to, value);
  detail::in_shares(ex, to.size(), [&](detail::ThreadShare share, int) {
    fill(executor::host{}, to.part(share.first, share.last - share.first), value);
  });
}

TERSE_NUMERICS_END
}  // namespace terse

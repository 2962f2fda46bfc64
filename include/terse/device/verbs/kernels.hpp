// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "terse/core/error.hpp"
#include "terse/device/verbs/arriving.hpp"

// The verbs for executors that run kernels on a grid of thread blocks: `executor::cuda` on a device, and
// `executor::emulated` on the host. The latter runs the same kernels, for tests and debuggers. Such an executor E
// has
//
//     E::grid == true, E::memory; E::staging, host memory with fast copies to and from E::memory
//     launch(kernel, blocks)                   runs kernel(block, shared) in `blocks` blocks of 256 threads, or as many as
//                                              its `tuning` says, in order after all earlier launches
//     move(to, from, bytes)                    copies within E::memory, in the same order
//     bring(to, from, bytes)                   copies to the host, and
//     send(to, from, bytes)                    from it, in the same order; complete after synchronize()
//     synchronize()                            returns when all of this is done
//
// A kernel is a trivially copyable struct with `Shared`, the shared memory of a block's threads, and a `cooperative`
// constant. It is true if its threads wait for each other, by these functions of the block:
//
//     sync()
//     ballot(bit), shuffle(word, from)         among the 32 threads of a warp, all of which take part
//     exclusive_sum(own, total)                the sum over the threads before this one, and over all threads
//     sum(own)                                 the sum over all threads, on the first thread; both sums are for blocks
//                                              of block_threads threads, all of which take part, and wait as in sync()
//
// The two sums are CUB's on a device, for unsigned integers only. For floats, CUB's tree would give other sums than the
// host's, so kernels join floats themselves.
//
// 64 threads are the 64 lanes of a tile, so that every sum has the same shape and every packet the same layout as with
// the host's verbs.

namespace terse {
namespace detail {

inline constexpr int tiles_per_block = block_threads / lanes;

/// Functors that name their streams, see executor/streams.hpp and executor/quads.hpp. Each of a tile's 16 threads takes
/// four neighbouring lanes of several rows at a time. The results equal those of calls lane by lane, bit for bit. The
/// last rows of a tile, and all rows if a stream is misaligned, are processed element by element.
template <class Incoming, class F>
concept RunsWide = NamesStreams<F> && requires {
  typename Incoming::template Rowwise<1>;
};

TERSE_NUMERICS_BEGIN

/// Returns the number of a thread's tile, if there is one, if `threads` threads share a tile. No memory holds 2^32 tiles.
template <int threads = lanes, class Block>
TERSE_HD std::uint32_t tile_number(const Block& block, Tuning tuning = {.threads = block_threads}) {
  return static_cast<std::uint32_t>(block.index() * (tuning.threads / threads) + block.thread() / threads);
}

/// A thread's tile and lanes.
struct WidePlace {
  std::uint32_t number;
  int lane;    // the first of four
  int thread;  // in its warp

  template <class Block>
  TERSE_HD WidePlace(const Block& block, Tuning tuning)
      : number(tile_number<row_threads>(block, tuning)),
        lane(block.thread() % row_threads * quad),
        thread(block.thread() % 32) {}
};

/// Kernel that runs `body(block, shared, slice, incoming)`, with room for some pieces and as many packets. Bodies
/// don't depend on the room, so they are compiled once for the host.
template <int room, class Incoming, class Body>
struct SliceKernel {
  static constexpr Tuning tuning = tuning_of_kernel<Body>();
  static constexpr bool cooperative = Body::cooperative;
  using Shared = typename Body::Shared;
  SliceOf<Listed<SlicePiece, room>> slice;
  Arriving<Incoming, std::min(room, most_packets)> incoming;
  Body body;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    body(block, shared, slice.view(), incoming.view());
  }
};

/// Kernel that calls f(piece, i, keep[, sum]) for every element of a slice.
template <Tuning tuned, class Space, class Incoming, class F>
struct ForEachBody {
  static constexpr bool wide = RunsWide<Incoming, F>;
  static constexpr int threads = wide ? row_threads : lanes;  // that share a tile
  static constexpr Tuning tuning = wide ? tuned : Tuning{.threads = block_threads};
  static constexpr int tiles = tuning.threads / threads;  // of a block
  static constexpr bool cooperative = false;
  struct Shared {};
  Mask<Space> mask;
  F f_;
  bool aligned;
  int halvings;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&, const SliceView& slice, const Incoming& incoming) const {
    const std::uint32_t number = tile_number<threads>(block, tuning);
    if (number >= slice.tiles << halvings) return;
    const Tile tile = slice.part_of_tile(number, halvings);
    F f = f_;
    enter(f, tile.piece);
    if (is_idle(f)) return;
    const int thread = block.thread() % threads;
    if constexpr (wide)
      by_rows(tile, f, incoming, thread * quad);
    else
      for (index_t b = tile.begin; b + thread < tile.end; b += lanes)
        incoming.call(f, tile, b, thread, (mask.word(tile.piece.offset + b) >> thread & 1) != 0);
  }

 private:
  TERSE_HD TERSE_INLINE void by_rows(const Tile& tile, F& f, const Incoming& incoming, int lane) const {
    constexpr int rows = tuned_rows<tuned, F, (Incoming::bits > 0)>;
    for (index_t b = tile.begin; b < tile.end; b += lanes) {
      for (; aligned && b + rows * lanes <= tile.end; b += rows * lanes) {
        const index_t first = tile.piece.offset + b + lane;
        const typename Incoming::template Rowwise<rows> arrived(incoming, tile, b, lane);
        if (arrived.damaged()) break;
        const FourOf<rows, Space> keep(mask, first);
        with_rows<rows>(f, first, [&](int r, F& bound) {
          TERSE_UNROLL
          for (int j = 0; j < quad; ++j) arrived.call(bound, tile, r, j, keep(r, j));
        });
      }
      if (b >= tile.end) break;  // the mask may not have a word here
      const FourOf<1, Space> keep(mask, tile.piece.offset + b + lane);
      TERSE_ROLLED
      for (int j = 0; j < quad && b + lane + j < tile.end; ++j)
        incoming.call(f, tile, b, lane + j, keep(0, j));
    }
  }
};

template <class T>
struct FillKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  T* to;
  index_t count;
  T value;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const index_t i = block.index() * block_threads + block.thread();
    if (i < count) to[i] = value;
  }
};

template <int room>
struct PutKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  std::byte* to;
  int count;
  std::byte values[static_cast<std::size_t>(room)];

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    for (int k = block.thread(); k < count; k += block_threads) to[k] = values[k];
  }
};

TERSE_NUMERICS_END

/// Launches a kernel over the tiles of a slice.
template <GridExecutor E, class Kernel>
void launch_tiles(E ex, const Slice& slice, const Kernel& kernel) {
  if (slice.tiles > 0) ex.launch(kernel, blocks_for(slice.tiles, tiles_per_block));
}

/// Launches a SliceKernel with room for few pieces and packets if these are few, since arguments are copied at each
/// launch.
template <int room = few_pieces, GridExecutor E, class Incoming, class Body>
void launch_body(E ex, const Slice& slice, const Incoming& incoming, const Body& body, index_t blocks) {
  if constexpr (room < most_pieces)
    if (slice.count > room || Arriving<Incoming, 0>(incoming).count > room)
      return launch_body<most_pieces>(ex, slice, incoming, body, blocks);
  using Kernel = SliceKernel<room, Incoming, Body>;
  if (blocks > 0)
    ex.launch(Kernel{slice.template within<room>(), decltype(Kernel::incoming)(incoming), body}, blocks);
}

}  // namespace detail

/// Calls f over several ranges at once, each of which may read a separate packet.
template <GridExecutor E, class Incoming, class F>
void for_each(E ex, detail::PlacedRanges ranges, Mask<typename E::memory> mask, Incoming incoming, F f) {
  using Arrived = detail::Arriving<Incoming, 0>;
  using Body = detail::ForEachBody<detail::tuning_of<E>(), typename E::memory, Arrived, F>;
  detail::for_each_slice<Arrived::bits, 0>(
      ranges, Arrived(incoming).units(), 0, [&](const detail::Slice& slice, bool) {
        const int halvings = slice.halvings();
        detail::launch_body(ex, slice, incoming, Body{mask, f, detail::streams_aligned(f), halvings},
                            detail::blocks_for(slice.tiles << halvings, Body::tiles));
      });
}

/// Computes the same bits as the host's verb of the same name, as the verbs below do.
template <GridExecutor E, class Incoming, class F>
void for_each(E ex, const Range& range, Mask<typename E::memory> mask, Incoming incoming, F f) {
  const detail::PlacedRange one{&range};
  for_each(ex, detail::PlacedRanges(&one, 1), mask, incoming, f);
}

template <GridExecutor E, class F>
void for_each(E ex, const Range& range, F f) {
  for_each(ex, range, NoMask{}, NoPackets{}, detail::WithoutMask<F>{f});
}

template <GridExecutor E, class T>
void copy(E ex, view<const T, typename E::memory> from, view<T, typename E::memory> to) {
  if (from.size() > 0) ex.move(to.data(), from.data(), static_cast<std::size_t>(from.size()) * sizeof(T));
}

template <GridExecutor E, class T>
void fetch(E ex, view<const T, typename E::memory> from, view<T> to) {
  ex.bring(to.data(), from.data(), static_cast<std::size_t>(from.size()) * sizeof(T));
  ex.synchronize();
}

/// Writes a few elements from the host into the executor's memory, as kernel arguments of up to 4 KiB. `from` may change
/// as soon as this returns, and the host doesn't wait.
template <GridExecutor E, class T>
void put(E ex, view<const T> from, view<T, typename E::memory> to) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto all = from.size() * static_cast<index_t>(sizeof(T));
  const auto launch = [&]<int room>(std::integral_constant<int, room>, index_t begin) {
    const auto count = static_cast<int>(std::min(index_t{room}, all - begin));
    detail::PutKernel<room> kernel{reinterpret_cast<std::byte*>(to.data()) + begin, count, {}};
    std::memcpy(kernel.values, reinterpret_cast<const std::byte*>(from.data()) + begin,
                static_cast<std::size_t>(count));
    ex.launch(kernel, 1);
    return begin + room;
  };
  if (all <= 128) {
    if (all > 0) launch(std::integral_constant<int, 128>{}, 0);
    return;
  }
  for (index_t begin = 0; begin < all;) begin = launch(std::integral_constant<int, 4064>{}, begin);
}

template <GridExecutor E, class T>
void fill(E ex, view<T, typename E::memory> to, std::type_identity_t<T> value) {
  if (to.size() > 0)
    ex.launch(detail::FillKernel<T>{to.data(), to.size(), value},
              detail::blocks_for(to.size(), detail::block_threads));
}

}  // namespace terse

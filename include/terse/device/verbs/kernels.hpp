// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>

#include "terse/core/error.hpp"
#include "terse/device/verbs/wide.hpp"

// The verbs for executors that run kernels on a grid of thread blocks: `executor::cuda` on a device, and
// `executor::emulated`, which runs the same kernels on the host, for tests and debuggers. Such an executor E has
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
// constant: true if its threads wait for each other, by these functions of the block:
//
//     sync()
//     ballot(bit), shuffle(word, from)         among the 32 threads of a warp, all of which take part
//     exclusive_sum(own, total)                the sum over the threads before this one, and over all threads
//     sum(own)                                 the sum over all threads, on the first thread; both sums are for blocks
//                                              of block_threads threads, all of which take part, and wait as in sync()
//
// The two sums are CUB's on a device, and for unsigned integers only: for floats, CUB's tree would give other sums than
// the host's, so kernels join floats themselves.
//
// 64 threads are the 64 lanes of a tile, so that every sum has the same shape and every packet the same layout as with
// the host's verbs.

namespace terse {
namespace detail {

inline constexpr int tiles_per_block = block_threads / lanes;

TERSE_NUMERICS_BEGIN

/// Returns the tile that this thread's group of 64 threads works on, if there is one.
template <class Block>
TERSE_HD index_t tile_number(const Block& block) {
  return block.index() * tiles_per_block + block.thread() / lanes;
}

/// Kernel that calls f(piece, i, keep[, sum]) for every element of a slice.
template <class Space, class Incoming, class F>
struct ForEachKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  Slice slice;
  Mask<Space> mask;
  Incoming incoming;
  F f_;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const index_t number = tile_number(block);
    if (number >= slice.tiles) return;
    const int lane = block.thread() % lanes;
    const Tile tile = slice.tile(number);
    F f = f_;
    enter(f, tile.piece);
    if (is_idle(f)) return;
    for (index_t b = tile.begin; b < tile.end; b += lanes)
      if (b + lane < tile.end)
        incoming.call(f, tile, b, lane, (mask.word(tile.piece.offset + b) >> lane & 1) != 0);
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

template <class T>
struct PutKernel {
  static constexpr bool cooperative = false;
  static constexpr index_t room = 256;
  struct Shared {};
  T* to;
  index_t count;
  T values[room];

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    if (block.thread() < count) to[block.thread()] = values[block.thread()];
  }
};

TERSE_NUMERICS_END

/// Launches a kernel over the tiles of a slice.
template <GridExecutor E, class Kernel>
void launch_tiles(E ex, const Slice& slice, const Kernel& kernel) {
  if (slice.tiles > 0) ex.launch(kernel, blocks_for(slice.tiles, tiles_per_block));
}
template <GridExecutor E, class Kernel>
void launch_wide(E ex, const Slice& slice, const Kernel& kernel, int halvings = 0) {
  if (slice.tiles > 0)
    ex.launch(kernel, blocks_for(slice.tiles << halvings, Kernel::tuning.threads / row_threads));
}

}  // namespace detail

/// Calls f over several ranges at once, each of which may read its own packet.
template <GridExecutor E, class Incoming, class F>
void for_each(E ex, detail::PlacedRanges ranges, Mask<typename E::memory> mask, Incoming incoming, F f) {
  using Arrived = detail::Arriving<Incoming>;
  const Arrived arriving(incoming);
  detail::for_each_slice<Arrived::bits, 0>(
      ranges, arriving.units(), 0, [&](const detail::Slice& slice, bool) {
        if constexpr (detail::RunsWide<Arrived, F>)
          detail::launch_wide(
              ex, slice,
              detail::ForEachWideKernel<detail::tuning_of<E>(), typename E::memory, Arrived, F>{
                  slice, mask, arriving, f, detail::streams_aligned(f), slice.halvings()},
              slice.halvings());
        else
          detail::launch_tiles(
              ex, slice, detail::ForEachKernel<typename E::memory, Arrived, F>{slice, mask, arriving, f});
      });
}

/// Computes, as the verbs below do, the same bits as the host's verb of the same name.
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

/// Writes a few elements from the host into the executor's memory, as kernel arguments. `from` may change as soon as
/// this returns, and the host doesn't wait.
template <GridExecutor E, class T>
void put(E ex, view<const T> from, view<T, typename E::memory> to) {
  using Kernel = detail::PutKernel<T>;
  for (index_t begin = 0; begin < from.size(); begin += Kernel::room) {
    const index_t count = std::min(Kernel::room, from.size() - begin);
    Kernel kernel{to.data() + begin, count, {}};
    std::copy_n(from.data() + begin, count, kernel.values);
    ex.launch(kernel, 1);
  }
}

template <GridExecutor E, class T>
void fill(E ex, view<T, typename E::memory> to, std::type_identity_t<T> value) {
  if (to.size() > 0)
    ex.launch(detail::FillKernel<T>{to.data(), to.size(), value},
              detail::blocks_for(to.size(), detail::block_threads));
}

}  // namespace terse

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "terse/core/config.hpp"
#include "terse/core/layout.hpp"

namespace terse {

namespace detail {

enum class Access { reads, writes, updates, may_update, hands_over };

/// One pointer member of a functor.
template <Access A, class T>
struct Stream {
  static constexpr Access access = A;
  using Element = std::remove_const_t<T>;
  static_assert(A == Access::reads || !std::is_const_v<T>, "terse: a stream of const elements is only read");
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "terse: the elements of a stream have 2 or 4 bytes");

  T** data;
  index_t* begin;  // the arena index of the first element, if given

  TERSE_HD T* at(index_t i) const { return *data + (begin == nullptr ? i : i - *begin); }
};

/// A functor's streams, in order.
template <class... S>
struct Streams;
template <>
struct Streams<> {
  static constexpr int count = 0;
  bool aligned() const { return true; }
};
template <class First, class... Rest>
struct Streams<First, Rest...> {
  static constexpr int count = 1 + static_cast<int>(sizeof...(Rest));
  First first;
  Streams<Rest...> rest;

  /// Checks whether elements 4 k to 4 k + 3 of each stream can be accessed at once.
  bool aligned() const {
    constexpr auto bytes = static_cast<std::uintptr_t>(sizeof(typename First::Element));
    const auto origin = first.begin == nullptr ? 0 : static_cast<std::uintptr_t>(*first.begin);
    return *first.data != nullptr &&
           (reinterpret_cast<std::uintptr_t>(*first.data) - origin * bytes) % (4 * bytes) == 0 &&
           rest.aligned();
  }
};
template <class... S>
TERSE_HD Streams<S...> operator+(Streams<>, Streams<S...> more) {
  return more;
}
template <class First, class... Rest, class... S>
TERSE_HD Streams<First, Rest..., S...> operator+(Streams<First, Rest...> some, Streams<S...> more) {
  return {some.first, some.rest + more};
}

template <Access A, class T>
TERSE_HD Streams<Stream<A, T>> stream(T*& data, index_t* begin) {
  return {{&data, begin}, {}};
}

}  // namespace detail

/// A functor that names its streams: all arrays that it accesses at i, each of them a pointer member. Grid executors
/// load four neighbouring elements of each at once. They call the functor on a copy whose pointers point to the loaded
/// elements, with i from 0 to 3, and store the results:
///
///     struct ScaleBy {
///       const float* from;
///       float* to;
///       float factor;
///       using StreamsOf = ScaleBy;
///       TERSE_HD auto streams() { return terse::reads(from) + terse::writes(to); }
///       TERSE_HD void operator()(const terse::Piece&, terse::index_t i) const { to[i] = factor * from[i]; }
///     };
///
/// The host, if compiled for AVX2, does the same with blocks of 64 elements of long ranges if a stream is only written.
/// It stores that stream around the cache. A stream that is only read is never stored. A stream that is only written is
/// never loaded, so it must be written for every element. The functor may use i only as an index of these arrays; it
/// doesn't learn the arena index. `StreamsOf` names the functor itself: a derived functor may access more arrays, so it
/// does not inherit the list. Functors that contain others join their streams: `inner.streams() + terse::updates(own)`.
/// Without streams, a functor is called for one element at a time.
template <class F>
concept NamesStreams = std::same_as<typename F::StreamsOf, F> && requires(F& f) {
  f.streams().aligned();
};

/// Returns a stream of elements that are only read, in an array whose first element is that of the arena.
template <class T>
TERSE_HD auto reads(T*& data) {
  return detail::stream<detail::Access::reads>(data, nullptr);
}
/// Returns a stream of elements that are only read. `begin` is the member with the arena index of the array's first
/// element.
template <class T>
TERSE_HD auto reads(T*& data, index_t& begin) {
  return detail::stream<detail::Access::reads>(data, &begin);
}
/// Returns a stream of elements that are written and never read, in an array whose first element is that of the arena.
template <class T>
TERSE_HD auto writes(T*& data) {
  return detail::stream<detail::Access::writes>(data, nullptr);
}
/// Returns a stream of elements that are written and never read. `begin` is the member with the arena index of the
/// array's first element.
template <class T>
TERSE_HD auto writes(T*& data, index_t& begin) {
  return detail::stream<detail::Access::writes>(data, &begin);
}
/// Returns a stream of elements that are read and written, in an array whose first element is that of the arena.
template <class T>
TERSE_HD auto updates(T*& data) {
  return detail::stream<detail::Access::updates>(data, nullptr);
}
/// Returns a stream of elements that are read and written. `begin` is the member with the arena index of the array's
/// first element.
template <class T>
TERSE_HD auto updates(T*& data, index_t& begin) {
  return detail::stream<detail::Access::updates>(data, &begin);
}
/// Returns a stream that a first functor writes and a second one reads. No other code uses it, so a verb that calls
/// both functors for a tile need not keep it in memory.
template <class T>
TERSE_HD auto hands_over(T*& data, index_t& begin) {
  return detail::stream<detail::Access::hands_over>(data, &begin);
}
/// Returns a stream like that of `updates`, for generic code that can't tell whether it writes: unchanged elements
/// are not stored.
template <class T>
TERSE_HD auto may_update(T*& data) {
  return detail::stream<detail::Access::may_update>(data, nullptr);
}

namespace detail {

/// Returns the last stream of a list.
template <class First, class... Rest>
TERSE_HD auto last_of(const Streams<First, Rest...>& streams) {
  if constexpr (sizeof...(Rest) == 0)
    return streams.first;
  else
    return last_of(streams.rest);
}

/// Functors f and g, of which f may hand over its last stream to g, which has no other. Then both can be called for
/// a tile while it is there.
template <class F, class G>
concept HandsOver = NamesStreams<F> && NamesStreams<G> && requires(F& f, G& g) {
  requires decltype(f.streams())::count > 0 && decltype(g.streams())::count == 1;
  requires std::same_as<decltype(last_of(f.streams())), decltype(last_of(g.streams()))>;
  requires std::same_as<typename decltype(last_of(g.streams()))::Element, float>;
  requires decltype(last_of(g.streams()))::access == Access::updates ||
      decltype(last_of(g.streams()))::access == Access::hands_over;
};
template <class F, class G>
requires HandsOver<F, G>
bool same_stream(F f, G g) {
  const auto from = last_of(f.streams()), to = last_of(g.streams());
  return from.begin != nullptr && to.begin != nullptr && *from.data == *to.data && *from.begin == *to.begin;
}
/// Returns f with its last stream elsewhere: `data` is the address of the arena's element `begin`.
template <class F>
TERSE_HD F moved_to(F f, float* data, index_t begin) {
  const auto last = last_of(f.streams());
  *last.data = data;
  *last.begin = begin;
  return f;
}

/// Checks whether a functor names its streams, and whether they are aligned for access to four elements at a time.
template <class F>
bool streams_aligned(F f) {
  if constexpr (NamesStreams<F>)
    return f.streams().aligned();
  else
    return false;
}

template <class F>
concept SaysIdle = requires(const F& f) {
  { f.idle() } -> std::same_as<bool>;
};
/// Checks by `idle()` whether a functor does nothing in the piece that it has entered. If so, verbs may skip the
/// piece.
template <class F>
TERSE_HD bool is_idle(const F& f) {
  if constexpr (SaysIdle<F>)
    return f.idle();
  else
    return false;
}

}  // namespace detail

}  // namespace terse

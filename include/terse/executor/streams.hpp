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
  index_t* begin;  // where given, the arena index of the first element

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

  /// Whether elements 4 k to 4 k + 3 of each stream can be reached at once.
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

/// A functor may name its streams: all arrays that it touches at i, each a pointer member. Grid executors then load four
/// neighbouring elements of each at once, call the functor for them on a copy whose pointers lead to where they were loaded,
/// with i from 0 to 3, and store what it left there:
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
/// The host, compiled for AVX2, does the same with blocks of 64 elements of long ranges if a stream is only written, which it stores
/// around the cache. What is only read is never stored, what is only written is never loaded, so that it must be written for every
/// element.
/// The functor uses i as an index of these arrays alone: what it is in the arena it isn't told. `StreamsOf` names the functor
/// itself: one that is derived from it may touch more, and so inherits nothing. Functors that contain others join theirs:
/// `inner.streams() + terse::updates(own)`. Without streams a functor is called for one element at a time.
template <class F>
concept NamesStreams = std::same_as<typename F::StreamsOf, F> && requires(F& f) {
  f.streams().aligned();
};

/// Where the array's first element isn't that of the arena, `begin` is the member that holds its arena index.
template <class T>
TERSE_HD auto reads(T*& data) {
  return detail::stream<detail::Access::reads>(data, nullptr);
}
/// The same of an array whose first element is arena element `begin`.
template <class T>
TERSE_HD auto reads(T*& data, index_t& begin) {
  return detail::stream<detail::Access::reads>(data, &begin);
}
/// Elements that are written and never read.
template <class T>
TERSE_HD auto writes(T*& data) {
  return detail::stream<detail::Access::writes>(data, nullptr);
}
/// The same of an array whose first element is arena element `begin`.
template <class T>
TERSE_HD auto writes(T*& data, index_t& begin) {
  return detail::stream<detail::Access::writes>(data, &begin);
}
/// Reads and writes.
template <class T>
TERSE_HD auto updates(T*& data) {
  return detail::stream<detail::Access::updates>(data, nullptr);
}
/// The same of an array whose first element is arena element `begin`.
template <class T>
TERSE_HD auto updates(T*& data, index_t& begin) {
  return detail::stream<detail::Access::updates>(data, &begin);
}
/// Written by a first functor and read by a second one, and of no use to anybody before and after: a verb that calls both for a
/// tile need not keep it in memory.
template <class T>
TERSE_HD auto hands_over(T*& data, index_t& begin) {
  return detail::stream<detail::Access::hands_over>(data, &begin);
}
/// The same as `updates` where generic code can't tell whether anything is written: what comes out as it went in is not stored.
template <class T>
TERSE_HD auto may_update(T*& data) {
  return detail::stream<detail::Access::may_update>(data, nullptr);
}

namespace detail {

/// The last stream of a list.
template <class First, class... Rest>
TERSE_HD auto last_of(const Streams<First, Rest...>& streams) {
  if constexpr (sizeof...(Rest) == 0)
    return streams.first;
  else
    return last_of(streams.rest);
}

/// Whether f may hand over its last stream to g, which has no other: then both can be called for a tile while it is there.
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
/// f with its last stream elsewhere: `data` is where element `begin` of the arena lies.
template <class F>
TERSE_HD F moved_to(F f, float* data, index_t begin) {
  const auto last = last_of(f.streams());
  *last.data = data;
  *last.begin = begin;
  return f;
}

/// Whether a functor's streams lie so that they may be read and written four elements at a time.
template <NamesStreams F>
bool streams_aligned(F f) {
  return f.streams().aligned();
}

template <class F>
concept SaysIdle = requires(const F& f) {
  { f.idle() } -> std::same_as<bool>;
};
/// A functor that says `idle()` of a piece which it has entered does nothing there, and verbs needn't call it.
template <class F>
TERSE_HD bool is_idle(const F& f) {
  if constexpr (SaysIdle<F>)
    return f.idle();
  else
    return false;
}

}  // namespace detail

}  // namespace terse

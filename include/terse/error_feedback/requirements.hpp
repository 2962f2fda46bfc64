// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "terse/compressor/concept.hpp"

// The members that the error feedback's contract in concept.hpp requires, one by one.

namespace terse {

namespace detail {

/// A visitor that ignores the parts of a state, for the concept checks.
struct IgnoreState {
  template <class... Part>
  void operator()(const char*, Part&&...) const {}
};

/// A visitor with the signatures that checkpoints accept for the parts of a state.
struct Part {
  template <class T, class Space>
  void operator()(view<T, Space>, index_t) const {}
  void operator()(std::uint64_t&) const {}
};
/// A visitor that reports wrong calls by `walk` with a readable static_assert.
template <class Visit>
struct PartByPart {
  Visit& visit;
  template <class Name, class... Shown>
  void operator()(const Name& name, Shown&&... shown) const {
    constexpr bool right =
        std::is_convertible_v<const Name&, std::string> && std::is_invocable_v<Part, Shown...>;
    static_assert(right,
                  "terse: an error feedback's walk calls visit(name, buffer.all(), begin) for a buffer that "
                  "begins at this arena index, and visit(name, number) for a std::uint64_t that is a member");
    if constexpr (right) visit(name, std::forward<Shown>(shown)...);
  }
};

template <class F>
using SomeStateOf = typename F::template State<SomeExecutor>;
template <class F>
using SomeViewOf = decltype(std::declval<SomeStateOf<F>&>().view());

template <class F>
concept HasFeedbackState = std::is_constructible_v < SomeStateOf<F>,
const F&, index_t, index_t > ;
template <class F>
concept ShowsFeedbackState = requires(SomeStateOf<F>& state) {
  state.walk(IgnoreState{});
};
template <class F>
concept StartsFits = !requires {
  &SomeStateOf<F>::start;
}
|| requires(SomeStateOf<F>& state) { state.start(1.0F); };
template <class F>
concept HasFeedbackView = requires {
  typename SomeViewOf<F>;
  requires std::copyable<SomeViewOf<F>>;
};
template <class V>
concept Compensates = requires(const V& view, index_t i, float message) {
  { view.compensate(i, message) } -> std::same_as<float>;
};
template <class V>
concept HoldsMessage = requires(const V& view, index_t i, float y) {
  { view.load(i) } -> std::same_as<float>;
  view.store(i, y);
};
template <class V>
concept Commits = requires(const V& view, index_t i, float y, float decoded) {
  view.commit(i, true, y, decoded);
};
template <class V>
concept ReceivesFits = !requires {
  &V::receive;
}
|| requires(const V& view, index_t i, float mean) {
  { view.receive(i, true, mean) } -> std::same_as<float>;
};
template <class V>
concept FeedbackView = Compensates<V> && HoldsMessage<V> && Commits<V> && ReceivesFits<V>;

}  // namespace detail

}  // namespace terse

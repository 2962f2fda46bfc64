// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "terse/transport/concept.hpp"

// The channels of a rank on two levels: its node's ranks, and the ranks with its number on all nodes. They come from Nodes,
// from a decorator of Nodes, or from one transport by `split`.

namespace terse::detail {

/// Returns the ranks per node; 0 if the transport has one level and every rank can send to every other.
template <class T>
int node_size([[maybe_unused]] const T& transport) {
  if constexpr (requires { transport.ranks_per_node(); })
    return transport.ranks_per_node();
  else
    return 0;
}
/// True for transports that may have two levels; AnyTransport knows this only at run time.
template <class T>
inline constexpr bool may_have_levels = requires(const T& transport) {
  { transport.ranks_per_node() } -> std::same_as<int>;
};

/// Returns a separate channel of a level. Collective.
template <class Level>
std::remove_cvref_t<Level> own_channel(Level&& level) {
  if constexpr (std::is_lvalue_reference_v<Level>)
    return level.split(0, level.rank());
  else
    return std::forward<Level>(level);
}

/// Returns the channel of a node's `width` ranks.
template <Transport T>
auto inside_of(T& channel, [[maybe_unused]] int width) {
  if constexpr (HasLevels<T>)
    return own_channel(channel.inside());
  else
    return channel.split(channel.rank() / width, channel.rank() % width);
}
/// Returns the channel of the ranks with equal numbers on all nodes.
template <Transport T>
auto across_of(T& channel, [[maybe_unused]] int width) {
  if constexpr (HasLevels<T>)
    return own_channel(channel.across());
  else
    return channel.split(channel.rank() % width, channel.rank() / width);
}

}  // namespace terse::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "terse/transport/concept.hpp"

// Channels of a rank of two levels: its node's ranks, and the ranks of its number on all nodes. Of Nodes, of what goes around
// Nodes, or of one transport, split.

namespace terse::detail {

/// How many ranks a node has; 0 where the transport is of one level, and every rank has a way to every other.
template <class T>
int node_size([[maybe_unused]] const T& transport) {
  if constexpr (requires { transport.ranks_per_node(); })
    return transport.ranks_per_node();
  else
    return 0;
}
/// Whether a transport may be of two levels; AnyTransport knows when it runs.
template <class T>
inline constexpr bool may_have_levels = requires(const T& transport) {
  { transport.ranks_per_node() } -> std::same_as<int>;
};

/// A channel of one's own of a level. Collective.
template <class Level>
std::remove_cvref_t<Level> own_channel(Level&& level) {
  if constexpr (std::is_lvalue_reference_v<Level>)
    return level.split(0, level.rank());
  else
    return std::forward<Level>(level);
}

/// The ranks of a node, where there are `width` of them.
template <Transport T>
auto inside_of(T& channel, [[maybe_unused]] int width) {
  if constexpr (HasLevels<T>)
    return own_channel(channel.inside());
  else
    return channel.split(channel.rank() / width, channel.rank() % width);
}
/// The ranks of one number on all nodes.
template <Transport T>
auto across_of(T& channel, [[maybe_unused]] int width) {
  if constexpr (HasLevels<T>)
    return own_channel(channel.across());
  else
    return channel.split(channel.rank() % width, channel.rank() / width);
}

}  // namespace terse::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/view.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"
#include "terse/transport/levels.hpp"

// Collectives for the program around its training: equal parameters on all ranks, a mean of losses, one value of each rank.
// All ranks make equal calls. The calls allocate memory; an optimizer's step uses its own rounds instead. Their messages
// are of Phase::setup.
//
// Values are a container in host memory or a terse::view in the transport's memory, of equal size on all ranks; otherwise
// all ranks throw mismatch_error before anything has moved. An argument that is not a container is a single value, and is
// returned. Errors of the transport are passed on, and the values may then be half-written.

namespace terse {

namespace detail {

/// Returns a view of a collective's values.
template <class T, class Space>
view<T, Space> elements_of(view<T, Space> values) {
  return values;
}
template <class Values>
requires requires(Values& values) {
  std::data(values);
  std::size(values);
}
auto elements_of(Values& values) { return view<std::remove_pointer_t<decltype(std::data(values))>>(values); }

template <class Values>
concept Elements = requires(Values& values) {
  elements_of(values);
};
template <Elements Values>
using ElementsOf = decltype(elements_of(std::declval<Values&>()));

template <class What>
struct SpaceOf {
  using type = typename What::memory;
};
template <class V, class Space>
struct SpaceOf<const view<V, Space>> {
  using type = Space;
};
template <class... What>
constexpr bool on_host() {
  return (std::is_same_v<typename SpaceOf<What>::type, memory::host> && ...);
}

/// Returns a hash of the values' bytes, which may be in any memory.
template <class V, class Space>
std::uint64_t hash_of(view<V, Space> values) {
  const view<const std::byte, Space> bytes(reinterpret_cast<const std::byte*>(values.data()),
                                           values.size() * static_cast<index_t>(sizeof(V)));
  if constexpr (std::is_same_v<Space, memory::host>) {
    return hash_bytes(bytes.data(), static_cast<std::size_t>(bytes.size()));
  } else {
    constexpr index_t at_once = index_t{1} << 20;
    buffer<std::byte> here(std::min(at_once, bytes.size()));
    std::uint64_t hash = 0;
    for (index_t first = 0; first < bytes.size(); first += at_once) {
      const index_t count = std::min(at_once, bytes.size() - first);
      download(bytes.part(first, count), here.all().part(0, count));
      hash = mix_hash(hash, hash_bytes(here.data(), static_cast<std::size_t>(count)));
    }
    return hash;
  }
}

/// Part `part` of `all` elements, divided into `parts` parts.
struct Share {
  index_t first, count;
  Share(index_t all, int part, int parts)
      : first(all * part / parts), count(all * (part + 1) / parts - first) {}
  template <class V, class Space>
  view<V, Space> of(view<V, Space> values) const {
    return values.part(first, count);
  }
};

template <Transport T>
void check_root(const T& transport, int root) {
  if (root < 0 || root >= transport.size())
    throw usage_error("there is no rank " + std::to_string(root) + " to send from: ranks are 0 to " +
                          std::to_string(transport.size() - 1),
                      transport.rank());
}

/// Throws mismatch_error on all ranks if one has another number of elements.
template <Transport T>
void agree_on_size(T& transport, index_t size) {
  Assembly<index_t, T> everyone(transport);
  const auto sizes = everyone(transport, size, Phase::setup);
  for (std::size_t rank = 1; rank < sizes.size(); ++rank)
    if (sizes[rank] != sizes[0])
      throw mismatch_error("rank 0 gives " + std::to_string(sizes[0]) +
                               " elements to a collective, and rank " + std::to_string(rank) + " " +
                               std::to_string(sizes[rank]),
                           transport.rank());
}

/// One batch of messages, each a part of `values` as bytes. Empty parts aren't sent.
template <class V, class Space>
class Parts {
 public:
  explicit Parts(view<V, Space> values) : values_(values) {}
  void send(int peer, Share share) {
    if (share.count > 0)
      sends_.push_back(
          {peer, reinterpret_cast<const std::byte*>(values_.data() + share.first), bytes(share)});
  }
  void receive(int peer, Share share) {
    if (share.count > 0)
      receives_.push_back({peer, reinterpret_cast<std::byte*>(values_.data() + share.first), bytes(share)});
  }
  template <Transport T>
  void exchange(T& transport) {
    transport.exchange(sends_, receives_, Phase::setup).wait();
    await_messages(transport);
    sends_.clear();
    receives_.clear();
  }

 private:
  static index_t bytes(Share share) { return share.count * static_cast<index_t>(sizeof(V)); }

  view<V, Space> values_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

/// Distributes the columns of a matrix of `rows` rows over the ranks, share by share. Returns the columns of this rank's
/// share: rank 0's rows, then rank 1's, and so on.
template <Transport T, class V>
buffer<V> deal_columns(T& transport, view<const V> matrix, index_t rows) {
  const int rank = transport.rank(), size = transport.size();
  const index_t columns = matrix.size() / rows;
  const auto share = [&](int part) { return Share(columns, part, size); };
  const index_t own = rows * share(rank).count;
  buffer<V> packed(rows > 1 ? matrix.size() : 0), dealt(own * size);
  for (int part = 0; rows > 1 && part < size; ++part)
    for (index_t row = 0; row < rows; ++row)
      std::copy_n(matrix.data() + row * columns + share(part).first, share(part).count,
                  packed.data() + rows * share(part).first + row * share(part).count);
  const view<const V> from = rows > 1 ? view<const V>(packed.all()) : matrix;
  const auto bytes = [](index_t count) { return count * static_cast<index_t>(sizeof(V)); };
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    if (share(peer).count > 0)
      sends.push_back({peer, reinterpret_cast<const std::byte*>(from.data() + rows * share(peer).first),
                       bytes(rows * share(peer).count)});
    if (own > 0)
      receives.push_back({peer, reinterpret_cast<std::byte*>(dealt.data() + own * peer), bytes(own)});
  }
  transport.exchange(sends, receives, Phase::setup).wait();
  std::copy_n(from.data() + rows * share(rank).first, own, dealt.data() + own * rank);
  return dealt;
}
template <class V>
void mean_of_rows(view<const V> matrix, view<V> mean) {
  const index_t rows = mean.empty() ? 0 : matrix.size() / mean.size();
  for (index_t i = 0; i < mean.size(); ++i) {
    double sum = 0;
    for (index_t row = 0; row < rows; ++row) sum += static_cast<double>(matrix[mean.size() * row + i]);
    mean[i] = static_cast<V>(sum / static_cast<double>(rows));
  }
}

/// Sends this rank's share of `values` to all other ranks, and receives theirs. Rank `except` receives none.
template <Transport T, class V, class Space>
void spread_shares(T& transport, view<V, Space> values, int except = -1) {
  Parts<V, Space> parts(values);
  const int rank = transport.rank(), size = transport.size();
  const auto share = [&](int part) { return Share(values.size(), part, size); };
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    if (peer != except) parts.send(peer, share(rank));
    if (rank != except) parts.receive(peer, share(peer));
  }
  parts.exchange(transport);
}

template <Transport T, class V, class Space>
void broadcast_within(T& transport, view<V, Space> values, int root) {
  const int rank = transport.rank(), size = transport.size();
  constexpr index_t few = 4096 / static_cast<index_t>(sizeof(V));
  const bool whole = values.size() <= few;
  Parts<V, Space> parts(values);
  const auto share = [&](int part) {
    return whole ? Share(values.size(), 0, 1) : Share(values.size(), part, size);
  };
  if (rank == root) {
    for (int peer = 0; peer < size; ++peer)
      if (peer != root) parts.send(peer, share(peer));
  } else {
    parts.receive(root, share(rank));
  }
  parts.exchange(transport);
  if (!whole) spread_shares(transport, values, root);
}
/// Replaces the values by their mean over ranks, with equal sums over one level and over two.
template <Transport T, class V>
void mean_within(T& transport, view<V> values) {
  const buffer<V> theirs = deal_columns(transport, view<const V>(values), 1);
  mean_of_rows(theirs.all(), Share(values.size(), transport.rank(), transport.size()).of(values));
  spread_shares(transport, values);
}
template <Transport Inside, Transport Across, class V>
void mean_within(Inside& inside, Across& across, view<V> values) {
  const buffer<V> node = deal_columns(inside, view<const V>(values), 1);
  const view<V> mine = Share(values.size(), inside.rank(), inside.size()).of(values);
  const buffer<V> all = deal_columns(across, node.all(), inside.size());
  mean_of_rows(all.all(), Share(mine.size(), across.rank(), across.size()).of(mine));
  spread_shares(across, mine);
  spread_shares(inside, values);
}

}  // namespace detail

/// Copies rank `root`'s values to all ranks. Each rank moves at most twice the bytes of the values, for any number of
/// ranks: the root sends each rank a share, which this rank then passes on. Up to 4 KiB are one message to each.
template <Transport T, class Values>
requires detail::Elements<Values>
void broadcast(T& transport, Values&& given, int root = 0) {
  const auto values = detail::elements_of(given);
  using View = std::remove_const_t<decltype(values)>;
  using V = typename View::element;
  static_assert(std::is_trivially_copyable_v<V> && !std::is_const_v<V>);
  static_assert(
      std::is_same_v<typename View::space, typename T::memory>,
      "terse: a collective's values lie in the transport's memory; put ThroughHost around the transport");
  const detail::Call call(detail::Verb::broadcast);
  detail::check_root(transport, root);
  detail::agree_on_size(transport, values.size());
  const int width = detail::node_size(transport);
  if (width == 0) return detail::broadcast_within(transport, values, root);
  if constexpr (detail::may_have_levels<T>) {
    auto inside = detail::inside_of(transport, width);
    auto across = detail::across_of(transport, width);
    if (inside.rank() == root % width) detail::broadcast_within(across, values, root / width);
    detail::broadcast_within(inside, values, root % width);
  }
}

/// Returns rank `root`'s value.
template <Transport T, class V>
requires(!detail::Elements<const V>) V broadcast(T& transport, const V& value, int root = 0) {
  const detail::Call call(detail::Verb::broadcast_one);
  detail::check_root(transport, root);
  Assembly<V, T> everyone(transport);
  return everyone(transport, value, Phase::setup)[static_cast<std::size_t>(root)];
}

/// Replaces the values, float or double in host memory, by their mean over ranks. Sums in rank order, in double, and
/// rounds once: all ranks get the same bits. Each rank sends 2 (W - 1) / W of the values.
template <Transport T, class Values>
requires detail::Elements<Values>
void mean(T& transport, Values&& given) {
  const auto values = detail::elements_of(given);
  using V = typename std::remove_const_t<decltype(values)>::element;
  static_assert(std::is_same_v<V, float> || std::is_same_v<V, double>, "terse: means are of float or double");
  static_assert(detail::on_host<decltype(values), T>(), "terse: means are taken in host memory");
  const detail::Call call(detail::Verb::mean);
  detail::agree_on_size(transport, values.size());
  const int width = detail::node_size(transport);
  if (width == 0) return detail::mean_within(transport, values);
  if constexpr (detail::may_have_levels<T>) {
    auto inside = detail::inside_of(transport, width);
    auto across = detail::across_of(transport, width);
    detail::mean_within(inside, across, values);
  }
}

/// Returns the mean over ranks of a number of each rank.
template <Transport T>
double mean(T& transport, double value) {
  const detail::Call call(detail::Verb::mean_one);
  Assembly<double, T> everyone(transport);
  double sum = 0;
  for (const double theirs : everyone(transport, value, Phase::setup)) sum += theirs;
  return sum / transport.size();
}

/// Gathers every rank's values in rank order: `all` has room for W times as many. In host memory.
template <Transport T, class Values, class All>
requires detail::Elements<const Values> && detail::Elements<All>
void all_gather(T& transport, const Values& given, All&& all_given) {
  const auto mine = detail::elements_of(given);
  const auto all = detail::elements_of(all_given);
  static_assert(detail::on_host<decltype(mine), decltype(all)>(),
                "terse: values are gathered in host memory");
  static_assert(
      std::is_same_v<typename T::memory, memory::host> || GathersHostBytes<T>,
      "terse: a transport whose messages are not in host memory needs all_gather(mine, all, phase)");
  const detail::Call call(detail::Verb::all_gather);
  detail::agree_on_size(transport, mine.size());
  const index_t wanted = mine.size() * transport.size();
  if (all.size() != wanted)
    throw usage_error("all_gather of " + std::to_string(mine.size()) + " elements from " +
                          std::to_string(transport.size()) + " ranks needs room for " +
                          std::to_string(wanted) + ", not " + std::to_string(all.size()),
                      transport.rank());
  if constexpr (GathersHostBytes<T>) {
    if (!mine.empty())
      transport.all_gather(
          std::as_bytes(std::span(mine.data(), static_cast<std::size_t>(mine.size()))),
          std::as_writable_bytes(std::span(all.data(), static_cast<std::size_t>(all.size()))), Phase::setup);
  } else {
    std::copy_n(mine.data(), mine.size(), all.data() + mine.size() * transport.rank());
    detail::spread_shares(transport, all);
  }
}

/// Returns a value of each rank, in rank order.
template <Transport T, class V>
requires std::is_trivially_copyable_v<V> std::vector<V> all_gather(T& transport, const V& value) {
  const detail::Call call(detail::Verb::all_gather_one);
  Assembly<V, T> everyone(transport);
  const auto all = everyone(transport, value, Phase::setup);
  return {all.begin(), all.end()};
}

/// Checks whether all ranks have values of equal number and bits; returns the same answer on all ranks. Sends a hash of 64 bits.
template <Transport T, class Values>
requires detail::Elements<const Values>
bool equal(T& transport, const Values& given) {
  const detail::Call call(detail::Verb::equal);
  Assembly<std::uint64_t, T> everyone(transport);
  const auto hashes = everyone(transport, detail::hash_of(detail::elements_of(given)), Phase::setup);
  return std::all_of(hashes.begin(), hashes.end(), [&](std::uint64_t one) { return one == hashes[0]; });
}

}  // namespace terse

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/core/policy.hpp"
#include "terse/exchange/hierarchical_functors.hpp"
#include "terse/exchange/inner_level.hpp"
#include "terse/exchange/inner_mean.hpp"
#include "terse/transport/levels.hpp"

namespace terse {

/// Nodes of `ranks_per_node` consecutive ranks, W = nodes * ranks_per_node. The ranks of a node compute their mean in full
/// precision, share by share. The rank that owns a share exchanges it, compressed, with the owners of that share on the other
/// nodes. The result goes to all ranks of the node in full precision:
///
///     reduce-scatter within a node by Inner      exchange between nodes by Outer      all-gather within a node by Inner
///
/// The mean over W ranks is the mean over nodes of each node's mean as compressed. Error feedback belongs to the share: n /
/// ranks_per_node floats. Let a node have L ranks. Between nodes, a rank sends as much as Outer for n / L elements among W / L
/// ranks; within a node it sends 2 (L - 1) / L of the n floats. Inner is a topology whose round has halves (ScatterGather, Ring
/// or Native), or Within<C>, which also compresses within a node. Outer is any exact one. Full-precision packets use the same
/// path.
///
/// Works over one transport, which it splits, or over Nodes, which combines two: threads or NCCL within a node, MPI between nodes.
/// With Nodes and ranks_per_node = 0, Nodes determines the number. Constructors throw usage_error on all ranks if nodes aren't full.
///
///     OneBitAdam<Hierarchical<Native, Ring>>{.topology = {.ranks_per_node = 8}}
template <Topology Inner = ScatterGather, Topology Outer = ScatterGather>
struct Hierarchical {
  static_assert(Inner::exact && Outer::exact, "terse: both levels of Hierarchical take exact topologies");
  static_assert(
      !detail::is_no_mean<Inner>() && !detail::is_no_mean<Outer>(),
      "terse: Gathered merges whole messages of ranks, and levels of Hierarchical have shares of nodes' "
      "means. Take AllGather");
  static constexpr bool exact = true;
  static constexpr bool recompresses = Outer::recompresses;
  static constexpr bool compresses_partial_sums = true;
  static constexpr bool evaluates_late = detail::evaluates_late<Inner>();
  static constexpr bool waits_for_sizes = detail::waits_for_sizes<Outer>();
  static constexpr bool compresses_within =
      !detail::InsideOf<Inner>::Code::lossless || detail::compresses_within<Outer>();
  using ForDense = Hierarchical<typename detail::InsideOf<Inner>::Way, detail::DenseTopologyOf<Outer>>;

  template <class T>
  static constexpr bool check_on() {
    return terse::check_on<Inner, decltype(detail::inside_of(std::declval<T&>(), 1))>() &&
           terse::check_on<Outer, decltype(detail::across_of(std::declval<T&>(), 1))>();
  }

  int ranks_per_node = 0;  ///< 0: the number of ranks in the transport's nodes
  Inner inner{};           ///< the topology within nodes
  Outer outer{};           ///< the topology between nodes

  ForDense for_dense() const {
    return {ranks_per_node, detail::InsideOf<Inner>::way(inner), detail::dense_topology(outer)};
  }
  const char* unrecordable(const RecordUse& use) const { return detail::unrecordable(use, inner, outer); }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("ranks_per_node", static_cast<double>(ranks_per_node));
    detail::policy_settings(inner, visit);
    detail::policy_settings(outer, visit);
  }
};

namespace detail {

template <class Inner, class Outer>
inline constexpr bool has_own_rounds<Hierarchical<Inner, Outer>> = true;

/// Returns the transport's number if it has one, else `wanted`. Throws usage_error if they differ or nodes aren't full.
inline int ranks_per_node(const Channel& channel, int wanted) {
  const int size = channel.size(), found = channel.ranks_per_node();
  if (found > 0) {
    if (wanted != 0 && wanted != found)
      throw usage_error("Hierarchical's ranks_per_node is " + std::to_string(wanted) +
                            ", and the transport has nodes of " + std::to_string(found) + " ranks",
                        channel.rank());
    return found;
  }
  if (wanted == 0)
    throw usage_error(
        "Hierarchical's ranks_per_node is 0, but this transport has no nodes: set it, as in .topology = "
        "{.ranks_per_node = 8}, or give the optimizer a Nodes",
        channel.rank());
  if (wanted < 1 || size % wanted != 0)
    throw usage_error("Hierarchical's ranks_per_node is " + std::to_string(wanted) + ", of " +
                          std::to_string(size) + " ranks: it must divide them into full nodes",
                      channel.rank());
  return wanted;
}

template <class C, class F, class Inner, class Outer, Executor E>
requires takes_any_round<C>
class Rounds<C, F, Hierarchical<Inner, Outer>, E> {
  static_assert(!starts_exactly<F>(),
                "terse: the copies of Ef21 start from each rank's own exact message, and over "
                "Hierarchical the owner of a share sends its node's. Use Residual");
  using Level = InsideOf<Inner>;
  using Code = typename Level::Code;
  using Node = RoundContext<Code, typename Level::Feedback, E>;
  using Half = typename Level::Way::template Round<Code, typename Level::Feedback, E>;
  /// True if messages are also compressed within nodes.
  static constexpr bool compresses = !Code::lossless;
  static_assert(
      requires(Half & half, Node& node, const Message<SayShare, SayShare>& message) {
        { Half::own_chunk(0, 1) } -> std::same_as<int>;
        { half.reduced(node, message, true) } -> std::same_as<bool>;
        half.spread(node, message);
        { half.gathered(node, true) } -> std::same_as<bool>;
        { half.most_spread_bytes(node) } -> std::same_as<index_t>;
      },
      "terse: within a node Hierarchical needs a topology whose round has halves: ScatterGather, Ring or "
      "Native");

 public:
  TERSE_COLD Rounds(E executor, Channel& transport, const C& compressor, const F& feedback,
                    const Layout& layout, const Range& range, bool note,
                    const Hierarchical<Inner, Outer>& topology, RankNames names = {})
      : size_((check_policy(topology.inner), detail::ranks_per_node(transport, topology.ranks_per_node))),
        node_(transport.rank() / size_),
        local_(transport.rank() % size_),
        plan_(compressor, layout, range, size_, false),
        layout_(layout),
        channel_(transport.inside(size_)),
        inside_(executor, channel_, envelope_, Level::code(topology.inner), Level::feedback(topology.inner),
                layout_, Level::plan(plan_, topology.inner, note), {names(node_ * size_), names.stride}),
        work_(work_bytes<Half>(inside_, Level::way(topology.inner)), uninitialized),
        half_((inside_.work = work_.data(), make_round<Half>(inside_, Level::way(topology.inner)))),
        back_(topology.inner, plan_, executor, channel_, envelope_, layout_, inside_.names),
        across_(transport.across(size_)),
        own_(plan_.chunks[static_cast<std::size_t>(Half::own_chunk(local_, size_))]),
        between_(executor, across_, compressor, feedback, layout,
                 plan_.in_full_precision(false)
                     .chunks[static_cast<std::size_t>(Half::own_chunk(local_, size_))]
                     .dense,
                 false, topology.outer, {names(local_), names.stride * size_}),
        compressed_(room_for(own_.compressed)),
        dense_(room_for(own_.dense)),
        marks_(compressed_.size()),
        kinds_(static_cast<index_t>(layout.segments().size())) {
    std::vector<std::uint8_t> kinds(layout.segments().size());
    for (const Piece& piece : plan_.whole.compressed.pieces())
      kinds[static_cast<std::size_t>(piece.segment)] = 1;
    if (!kinds.empty()) upload(view<const std::uint8_t>(kinds), kinds_.all());
  }

  void open(const StepContext& step, Mask<typename E::memory> mask) {
    if constexpr (compresses) {
      // Separate random streams for this level: the rounding of its packets must be independent of the rounding of the share. On the way
      // to the owners, each rank of the world has a separate stream. On the way back, ranks with the same number on all nodes share one.
      const std::uint64_t seed = mix_hash(step.seed, static_cast<std::uint64_t>(inside_.names.stride));
      inside_.open(step.step, seed, step.agreement, step.learning_rate, mask, step.now, step.checks_payload);
      inside_.first.local = {Draw::local(seed, inside_.names(local_), step.step, Purpose::quantization),
                             step.now};
      back_.open(step.step, seed, step.agreement, step.learning_rate, mask, step.now, step.checks_payload);
    } else {
      inside_.open(step.step, step.seed, step.agreement, step.learning_rate, {}, step.now,
                   step.checks_payload);
    }
    between_.open(step, mask);
    mask_ = mask;
    dense_only_ = step.dense_only;
  }
  template <class M>
  void start(const M& message) {
    static_assert(!compresses || !listens<M>,
                  "terse: this momentum correction (FactorMasking) needs the sent part of each rank's "
                  "message, and Within withholds a part of it. Use Hierarchical<ScatterGather, ...>");
    if constexpr (listens<M>) fill(inside_.executor, marks_.all(), std::uint8_t{0});
    stage_ = Stage::reduce;
    half_.start(inside_, of_all(message));
  }
  template <class M>
  bool advance(const M& message, bool block) {
    switch (stage_) {
      case Stage::reduce:
        if (!half_.reduced(inside_, of_all(message), block)) return false;
        half_.take(inside_, into_share());
        swap_envelopes();
        between_.start(share<M>());
        stage_ = Stage::between;
        return false;
      case Stage::between:
        if (!between_.advance(share<M>(), block)) return false;
        swap_envelopes();
        stage_ = listens<M> ? Stage::tell : Stage::gather;
        if constexpr (listens<M>)
          spread(of_all(Message{SayMarked{compressed(), marks()}, SayNothing{}}));
        else
          spread_mean();
        return false;
      case Stage::tell:
        if (!gathered(block)) return false;
        if constexpr (listens<M>)
          consume_spread(
              by_kind(TellSent<decltype(message.compressed), decltype(mask_)>{message.compressed, mask_},
                      IgnoreMean{}));
        stage_ = Stage::gather;
        spread_mean();
        return false;
      case Stage::gather:
        break;
    }
    return gathered(block);
  }
  void arrived(bool throws) { envelope_.arrived(inside_.executor, throws); }
  template <class Consumer>
  void consume(const Consumer& consumer) {
    consume_spread(by_kind(consumer.compressed, consumer.dense, dense_only_));
  }
  template <class Functor>
  auto gated(const Functor& f) const {
    return envelope_.gated(f);
  }
  void await() {
    await_messages(channel_);
    between_.await();
  }
  void settle(std::uint64_t step) {
    await();
    envelope_.settle(inside_.executor, step);
  }
  double notes() {
    await();
    return half_.notes(inside_.executor);
  }
  index_t most_bytes(bool told = false) const {
    if constexpr (compresses)
      return half_.most_bytes(inside_) - half_.most_spread_bytes(inside_) + back_.most_bytes() +
             between_.most_bytes(told);
    const index_t telling = told ? half_.most_spread_bytes(inside_) : 0;
    return half_.most_bytes(inside_) + telling + between_.most_bytes(told);
  }
  Envelope<E>& envelope() { return envelope_; }

  const Range& compressed() const { return plan_.whole.compressed; }
  void set_compressor(const C& compressor) { between_.set_compressor(compressor); }
  auto feedback() { return between_.feedback(); }
  template <class Visit>
  void walk(Visit&& visit) {
    if constexpr (compresses)
      inside_.codec.walk([&](const std::string& name, auto&&... rest) {
        visit("within_" + name, std::forward<decltype(rest)>(rest)...);
      });
    between_.walk(visit);
  }

 private:
  enum class Stage { reduce, between, tell, gather };

  /// True for messages that are notified of their decoded values. For a lossless compressor it is false.
  template <class M>
  static constexpr bool listens = !C::lossless && requires(const M& message) {
    message.compressed.sent(index_t{}, true, 0.0F);
  };

  static buffer<float, typename E::memory> room_for(const Range& range) {
    return buffer<float, typename E::memory>(range.end_offset() - range.begin_offset(), uninitialized);
  }
  /// Buffers of the share, addressed by arena index.
  float* compressed() { return compressed_.data() - own_.compressed.begin_offset(); }
  std::uint8_t* marks() { return marks_.data() - own_.compressed.begin_offset(); }
  float* dense() { return dense_.data() - own_.dense.begin_offset(); }

  template <class M>
  auto of_all(const M& message) {
    if constexpr (C::lossless) {
      return Message{message.dense, message.dense};
    } else {
      const ByKind<decltype(message.compressed), decltype(message.dense)> both{message.compressed,
                                                                               message.dense, kinds_.data()};
      return Message{both, both};
    }
  }
  template <class Compressed, class Exact>
  auto by_kind(const Compressed& compressed, const Exact& dense, bool dense_only = false) {
    if constexpr (C::lossless) {
      return Message{dense, dense};
    } else {
      const ConsumeByKind<Compressed, Exact> both{compressed, dense, kinds_.data(), dense_only};
      return Message{both, both};
    }
  }
  template <class M>
  auto share() {
    if constexpr (listens<M>)
      return Message{SayShareAndMark{compressed(), marks()}, SayShare{dense()}};
    else
      return Message{SayShare{compressed()}, SayShare{dense()}};
  }
  auto into_share() { return by_kind(WriteArena{compressed()}, WriteArena{dense()}); }
  /// Sends the mean over nodes, stored in place of the share, to all ranks of the node. This also happens after an error: all ranks
  /// must learn of it, and no rank will read the mean.
  void spread_mean() {
    swap_envelopes();
    between_.consume(Message{WriteArena{compressed()}, WriteArena{dense()}});
    swap_envelopes();
    spread(of_all(Message{SayShare{compressed()}, SayShare{dense()}}));
  }
  template <class M>
  void spread(const M& message) {
    if constexpr (compresses)
      back_.spread(message);
    else
      half_.spread(inside_, message);
  }
  bool gathered(bool block) {
    if constexpr (compresses)
      return back_.gathered(block);
    else
      return half_.gathered(inside_, block);
  }
  template <class Consumer>
  void consume_spread(const Consumer& consumer) {
    if constexpr (compresses)
      back_.consume(consumer);
    else
      half_.consume(inside_, consumer);
  }
  /// Swaps the envelopes, so that the node's round carries the step's flags to the exchange between nodes, and back.
  void swap_envelopes() { std::swap(envelope_, between_.envelope()); }

  int size_, node_, local_;  // number of ranks in a node; this rank's node, and its number there
  Plan plan_;
  Layout layout_;
  Channel channel_;
  Envelope<E> envelope_;
  Node inside_;
  buffer<std::byte, typename E::memory> work_;
  Half half_;
  [[no_unique_address]] BackOf<Inner, E> back_;
  Channel across_;
  Portion own_;
  Rounds<C, F, Outer, E> between_;
  buffer<float, typename E::memory> compressed_, dense_;
  buffer<std::uint8_t, typename E::memory> marks_, kinds_;  // by element of the share; by segment
  Mask<typename E::memory> mask_{};
  bool dense_only_ = false;
  Stage stage_ = Stage::reduce;
};

}  // namespace detail

}  // namespace terse

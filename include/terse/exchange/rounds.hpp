// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/core/non_finite.hpp"
#include "terse/topology/alone.hpp"
#include "terse/topology/by_size.hpp"
#include "terse/transport/assembly.hpp"

namespace terse {

/// The parameters of one step on this rank.
struct StepContext {
  std::uint64_t step = 0;  ///< counts from 1
  std::uint64_t seed = 0;  ///< seed of the run
  std::uint64_t agreement =
      0;  ///< hash of the current hyper-parameters; packets with other values are refused
  NonFinite on_non_finite = NonFinite::throw_;  ///< handling of a gradient that is not finite
  float learning_rate = 0;                      ///< learning rate, for error feedbacks that follow it
  const StepScalars* now = nullptr;             ///< this step's scalars, in the executor's memory
  bool* compressed = nullptr;   ///< if given, set to true when ranks exchange compressed messages
  bool dense_only = false;      ///< the compressed part of the mean is not consumed
  bool checks_payload = false;  ///< packets have a checksum of their whole content

  StepContext at_rate(float rate) const {
    StepContext other = *this;
    other.learning_rate = rate;
    return other;
  }
};

namespace detail {

/// The topology of full-precision packets for T. It is ForDense if T names it, BySize for ScatterGather and for
/// topologies that mix with neighbours, and otherwise T.
template <class T>
struct DenseTopology {
  using type = std::conditional_t<T::exact, T, BySize<>>;
};
template <>
struct DenseTopology<ScatterGather> {
  using type = BySize<>;
};
template <class T>
requires requires { typename T::ForDense; }
struct DenseTopology<T> {
  using type = typename T::ForDense;
};

template <class T>
struct EarlyTopology {
  using type = T;
};
template <class T>
requires requires { typename T::Early; }
struct EarlyTopology<T> {
  using type = typename T::Early;
};

/// The topology of full-precision packets for T: ForDense if T names it, otherwise T if it is exact, or BySize.
template <class T>
using DenseTopologyOf = typename DenseTopology<T>::type;

/// The topology of full-precision packets for T, for messages that change while their round is in flight.
template <class T>
using EarlyDenseTopologyOf = typename EarlyTopology<DenseTopologyOf<T>>::type;

/// Returns the full-precision topology for this topology, with its parameters.
template <class T>
DenseTopologyOf<T> dense_topology(const T& topology) {
  if constexpr (std::is_same_v<DenseTopologyOf<T>, T>)
    return topology;
  else if constexpr (requires { topology.for_dense(); })
    return topology.for_dense();
  else
    return {};
}

/// The rounds of an exchange for a compressor/topology pair. This primary template runs the topology's own Round over a
/// RoundContext, slice by slice; keyed mixing and hierarchies have specializations.
///
///     open(context, mask)           begins a round; no slice may start yet
///     allow(segment)                optional: the message's inputs in this segment are final
///     start(message)                all slices may start
///     advance(message, block)       as in a topology's Round; also starts slices that may start
///     arrived(throws)               all packets are here, see Envelope
///     read(message)                 optional, after arrived: decodes packets that require the message
///     consume(consumer), gated(functor), settle(step), notes(), most_bytes(told), walk(visit)
///     envelope()                    the step's envelope, which an outer round may lend
///     compressed(), feedback(), set_compressor(compressor)
///     fed_back()                    optional: the range that the error feedback's state covers, from the first element to the last
///
/// Packets of exact topologies are cut into slices, the last elements first, unless the compressor has its own round. A slice starts
/// when all its inputs are final, previous slices have started, and a lane is free. There are four lanes, each with a channel and the
/// memory for packets in flight. So on all ranks slice k follows slice k - 4 on the same channel. The order of a rank's messages there
/// doesn't depend on the order in which its gradients became ready. Slices share the error feedback's state; each has the second
/// errors of its chunks' owners.
template <class C, class F, class P, class E>
class Rounds {
  using Context = RoundContext<C, F, E>;
  using Round = typename RoundOf<C, F, P, E>::type;
  using FeedbackState = typename F::template State<E>;
  static constexpr bool sound() {
    if constexpr (P::exact) return check_round<Round, Context, std::is_same_v<DenseTopologyOf<P>, P>>();
    return true;
  }
  static_assert(sound());

  struct Slice {
    TERSE_COLD Slice(Context context_, const P& topology, std::byte* work)
        : context((context_.work = work, std::move(context_))), round(make_round<Round>(context, topology)) {}
    Context context;
    Round round;
    std::size_t pieces = 0;  // pieces of the slice that aren't final yet
    bool here = false;
  };

 public:
  TERSE_COLD Rounds(E executor, Channel& transport, const C& compressor, const F& feedback,
                    const Layout& layout, const Range& range, bool note, const P& topology,
                    RankNames names = {}, index_t slice_bytes = 0, FeedbackState* lent = nullptr)
      : executor_(executor),
        lanes_(transport.in_stream_order() ? 1 : 4),
        layout_(layout),
        compressed_(Plan(compressor, layout, range, 1, false).whole.compressed),
        feedback_(lent) {
    if (feedback_ == nullptr && !encodes_own<P>())
      feedback_ = &own_feedback_.emplace(feedback, compressed_.begin_offset(), compressed_.end_offset());
    const index_t bytes = takes_any_round<C> && P::exact
                              ? slice_bytes_of(slice_bytes, transport.in_stream_order(), !C::lossless)
                              : 0;
    const std::vector<Range> ranges = slices_of(range, bytes, Traits<C>::whole_segments);
    channels_.reserve(lanes_);
    for (std::size_t lane = 0; lane < std::min(lanes_, ranges.size()); ++lane)
      channels_.push_back(transport.split(0, transport.rank()));
    std::vector<Context> contexts;
    index_t work = 0;
    for (std::size_t k = 0; k < ranges.size(); ++k) {
      Plan plan(compressor, layout, ranges[k], transport.size(), note, cut_by<P>());
      FeedbackState* state = feedback_;
      if constexpr (encodes_own<P>()) {
        const Range& mine = plan.chunks[static_cast<std::size_t>(transport.rank())].compressed;
        own_chunks_.push_back(
            std::make_unique<FeedbackState>(feedback, mine.begin_offset(), mine.end_offset()));
        state = own_chunks_.back().get();
      }
      contexts.push_back(Context(executor, channels_[k % lanes_], envelope_, compressor, feedback, layout_,
                                 std::move(plan), names, state));
      work = std::max(work, work_bytes<Round>(contexts.back(), topology));
    }
    for (std::size_t lane = 0; lane < channels_.size(); ++lane) work_.emplace_back(work, uninitialized);
    for (std::size_t k = 0; k < ranges.size(); ++k)
      slices_.push_back(std::make_unique<Slice>(std::move(contexts[k]), topology, work_[k % lanes_].data()));
    if (own_feedback_)
      for (const auto& slice : slices_) slice->context.codec.compute_errors_late();
  }

  void open(const StepContext& step, Mask<typename E::memory> mask) {
    if constexpr (requires { own_feedback_->start(step.learning_rate); })
      if (own_feedback_) own_feedback_->start(step.learning_rate);
    for (const auto& slice : slices_) {
      Context& context = slice->context;
      context.open(step.step, step.seed, step.agreement, step.learning_rate, mask, step.now,
                   step.checks_payload);
      context.dense_only = step.dense_only;
      slice->pieces =
          context.plan.whole.compressed.pieces().size() + context.plan.whole.dense.pieces().size();
      slice->here = false;
    }
    started_ = arrived_ = 0;
  }
  void allow(index_t segment) {
    for (const auto& slice : slices_) {
      const Portion& whole = slice->context.plan.whole;
      slice->pieces -= whole.compressed.pieces_of(segment) + whole.dense.pieces_of(segment);
    }
  }
  template <class M>
  void start(const M& message) {
    for (const auto& slice : slices_) slice->pieces = 0;
    start_slices(message);
  }
  template <class M>
  bool advance(const M& message, bool block) {
    start_slices(message);
    move_slices(message, block);
    // A lane may have become free.
    start_slices(message);
    return arrived_ == slices_.size();
  }
  void arrived(bool throws) { envelope_.arrived(executor_, throws); }
  template <class Consumer>
  void consume(const Consumer& consumer) {
    for (const auto& slice : slices_) slice->round.consume(slice->context, consumer);
  }
  template <class Functor>
  auto gated(const Functor& f) const {
    return envelope_.gated(f);
  }
  void await() {
    for (Channel& channel : channels_) await_messages(channel);
  }
  void settle(std::uint64_t step) {
    await();
    envelope_.settle(executor_, step);
  }
  double notes() {
    await();
    double sum = 0;
    for (const auto& slice : slices_) sum += slice->round.notes(executor_);
    return sum;
  }
  index_t most_bytes(bool = false) const {
    index_t bytes = 0;
    for (const auto& slice : slices_) bytes += slice->round.most_bytes(slice->context);
    return bytes;
  }
  Envelope<E>& envelope() { return envelope_; }

  const Range& compressed() const { return compressed_; }
  void set_compressor(const C& compressor) {
    for (const auto& slice : slices_) slice->context.codec.set_compressor(compressor);
  }
  auto feedback() { return feedback_->view(); }
  const Range& fed_back() const { return compressed_; }
  template <class Visit>
  TERSE_COLD void walk(Visit&& visit) {
    for (const auto& slice : slices_) slice->context.codec.settle_errors();
    if (own_feedback_) own_feedback_->walk(PartByPart<std::remove_reference_t<Visit>>{visit});
    for (std::size_t k = 0; k < slices_.size(); ++k) {
      const std::string prefix = k == 0 ? "" : "slice_" + std::to_string(k) + "_";
      const auto visit_slice = [&](const std::string& name, auto&&... rest) {
        visit(prefix + name, std::forward<decltype(rest)>(rest)...);
      };
      slices_[k]->context.codec.walk(visit_slice);
      if constexpr (requires(Round & round) { round.walk(visit_slice); }) slices_[k]->round.walk(visit_slice);
    }
  }

 private:
  template <class M>
  void start_slices(const M& message) {
    while (started_ < slices_.size() && slices_[started_]->pieces == 0 &&
           (started_ < lanes_ || slices_[started_ - lanes_]->here)) {
      // Advances the slices in flight while the next one is encoded.
      move_slices(message, false);
      Slice& slice = *slices_[started_++];
      slice.round.start(slice.context, message);
    }
  }
  /// Advances the slices in flight; with `block` it waits for one of them.
  template <class M>
  void move_slices(const M& message, bool block) {
    for (std::size_t k = arrived_; k < started_; ++k) {
      Slice& slice = *slices_[k];
      if (slice.here) continue;
      slice.here = slice.round.advance(slice.context, message, block);
      block = false;
    }
    while (arrived_ < started_ && slices_[arrived_]->here) ++arrived_;
  }

  E executor_;
  std::size_t lanes_;  // one if the transport sends in a stream's order
  Layout layout_;
  Range compressed_;
  std::optional<FeedbackState> own_feedback_;
  FeedbackState* feedback_;
  std::vector<std::unique_ptr<FeedbackState>> own_chunks_;  // by slice, if a rank encodes only its own chunk
  Envelope<E> envelope_;
  std::vector<Channel> channels_;                            // by lane, as are the buffers
  std::vector<buffer<std::byte, typename E::memory>> work_;  // for packets in flight
  std::vector<std::unique_ptr<Slice>> slices_;               // in starting order
  std::size_t started_ = 0, arrived_ = 0;  // numbers of the slices that have started, in order
};

}  // namespace detail

}  // namespace terse

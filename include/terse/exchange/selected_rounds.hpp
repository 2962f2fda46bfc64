// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/compressor/dion_direction.hpp"
#include "terse/compressor/select.hpp"
#include "terse/exchange/rounds.hpp"

namespace terse::detail {

/// True if a compressor delivers the direction of a step, not a mean.
template <class C>
inline constexpr bool gives_directions = false;
template <int R>
inline constexpr bool gives_directions<DionDirection<R>> = true;
template <class C>
inline constexpr bool gives_directions<Unchecked<C>> = gives_directions<C>;

template <class... Branches>
inline constexpr bool takes_any_round<Select<Branches...>> =
    (takes_any_round<typename Branches::compressor_type> && ...);

/// Reports combinations that the rounds below don't support.
template <class... Branches, class F, class P, class E>
struct RoundOf<Select<Branches...>, F, P, E> {
  static_assert(
      takes_any_round<Select<Branches...>>,
      "terse: over Hierarchical no branch of Select can be LowRank, which takes whole matrices, where nodes "
      "exchange shares. Use a branch of TopK or Sign there, or another topology");
  using type = typename P::template Round<Dense, NoErrorFeedback, E>;
};

/// A round for each branch of Select, and one for full-precision segments, on separate channels. Each has its own envelope, since
/// a compressor's round may lend its envelope to an inner round. When all packets are here, each adopts the errors of the others,
/// so that after an error in one of them nothing of a step is consumed.
template <class... Branches, class F, class P, class E>
requires(!has_own_rounds<P>) class Rounds<Select<Branches...>, F, P, E> {
  static_assert(P::exact,
                "terse: Select is for means over all ranks, by an exact topology (ScatterGather, Ring, Star, "
                "AllGather, "
                "Hierarchical); graphs mix whole models");
  using C = Select<Branches...>;
  template <class Branch>
  static constexpr bool compresses = !Branch::compressor_type::lossless;
  template <class Branch>
  using FeedbackOf = typename Branch::template feedback_type<F>;
  template <class Branch>
  static constexpr bool sound() {
    if constexpr (compresses<Branch>)
      return check_feedback<typename Branch::compressor_type, FeedbackOf<Branch>>() &&
             terse::detail::check_stages<typename Branch::compressor_type, FeedbackOf<Branch>, P>();
    return true;
  }
  static_assert((sound<Branches>() && ...));
  template <class Branch>
  static constexpr bool starts_own_copies() {
    if constexpr (Branch::has_own_feedback) return starts_exactly<FeedbackOf<Branch>>();
    return false;
  }
  static_assert((!starts_own_copies<Branches>() && ...),
                "terse: Ef21 starts from the optimizer's exact steps, of which a branch's own doesn't "
                "hear: give it to the "
                "optimizer, as the ErrorFeedback of all branches");

  /// True if hidden matrices must use directions, whose magnitude differs from that of means.
  static constexpr bool directs = (gives_directions<typename Branches::compressor_type> || ...);
  static constexpr std::array<bool, C::size + 1> is_directed{
      gives_directions<typename Branches::compressor_type>...};
  static void refuse_undirected(const Segment& segment, std::size_t branch) {
    if (!segment.hidden || is_directed[branch]) return;
    const MatrixShape shape = matrix_shape(segment);
    throw usage_error("hidden segment '" + segment.name + "' of " + std::to_string(shape.rows) + " x " +
                      std::to_string(shape.columns) +
                      " would travel with no direction of its own: it goes by another branch of Select than "
                      "DionDirection's, is excluded from compression, or is not made smaller by its factors. "
                      "Change that, or don't mark it as hidden");
  }

  using Full = Rounds<Dense, NoErrorFeedback, DenseTopologyOf<P>, E>;
  /// A round that exists only if a segment belongs to its branch.
  template <class R>
  using Maybe = std::unique_ptr<R>;
  struct Nothing {};
  template <class Branch>
  static auto round_type() {
    if constexpr (compresses<Branch>)
      return std::type_identity<Rounds<typename Branch::compressor_type, FeedbackOf<Branch>, P, E>>{};
    else
      return std::type_identity<Nothing>{};
  }
  template <class Branch>
  using RoundsOf = typename decltype(round_type<Branch>())::type;

 public:
  TERSE_COLD Rounds(E executor, Channel& transport, const C& compressor, const F& feedback,
                    const Layout& layout, const Range& range, bool note, const P& topology,
                    RankNames names = {}, index_t slice_bytes = 0)
      : executor_(executor), in_stream_order_(transport.in_stream_order()) {
    std::vector<Piece> pieces[C::size + 1], compressed, shared;
    for (const Piece& piece : range.pieces()) {
      const std::size_t branch =
          compressor.branch_of(layout.segments()[static_cast<std::size_t>(piece.segment)]);
      if constexpr (directs)
        refuse_undirected(layout.segments()[static_cast<std::size_t>(piece.segment)], branch);
      pieces[branch].push_back(piece);
      if (branch == C::size) continue;
      compressed.push_back(piece);
      if (shares(branch)) shared.push_back(piece);
    }
    if constexpr (directs) {
      bool any = false;
      for (std::size_t k = 0; k < C::size; ++k) any = any || (is_directed[k] && !pieces[k].empty());
      require_directions(any);
    }
    compressed_ = Range(std::move(compressed));
    fed_back_ = Range(std::move(shared));
    feedback_.emplace(feedback, fed_back_.begin_offset(), fed_back_.end_offset());
    const Range full(std::move(pieces[C::size]));
    // The flags of a step require at least one packet.
    if (!full.pieces().empty() || compressed_.pieces().empty())
      full_ = std::make_unique<Full>(executor, transport, Dense{}, NoErrorFeedback{}, layout, full, note,
                                     dense_topology(topology), names, slice_bytes);
    for_each_branch([&]<std::size_t K, class Branch>(Index<K, Branch>) {
      const Range own(std::move(pieces[K]));
      if (own.pieces().empty()) return;
      const Branch& branch = compressor.template branch<K>();
      if constexpr (Branch::has_own_feedback)
        rounds<K>() =
            std::make_unique<RoundsOf<Branch>>(executor, transport, branch.compressor, branch.error_feedback,
                                               layout, own, false, topology, names, slice_bytes);
      else
        rounds<K>() =
            std::make_unique<RoundsOf<Branch>>(executor, transport, branch.compressor, feedback, layout, own,
                                               false, topology, names, slice_bytes, &*feedback_);
    });
  }

  void open(const StepContext& step, Mask<typename E::memory> mask) {
    if constexpr (requires { feedback_->start(step.learning_rate); }) feedback_->start(step.learning_rate);
    for_each([&](auto& round) { round.open(step, mask); });
    absorbed_ = false;
  }
  void allow(index_t segment) {
    // In a stream's order, all ranks must post in the same order on all branches' channels: in `start`.
    if (!in_stream_order_) for_each([&](auto& round) { round.allow(segment); });
  }
  template <class M>
  void start(const M& message) {
    for_each([&](auto& round) { round.start(message); });
  }
  template <class M>
  bool advance(const M& message, bool block) {
    bool here = true;
    for_each([&](auto& round) {
      // With `block`, waits for only one of the rounds.
      if (!round.advance(message, block)) here = block = false;
    });
    if (here && !std::exchange(absorbed_, true)) {
      for_each([&](auto& round) {
        if (&round.envelope() != &envelope()) envelope().absorb(executor_, round.envelope());
      });
      for_each([&](auto& round) {
        if (&round.envelope() != &envelope()) round.envelope().absorb(executor_, envelope());
      });
    }
    return here;
  }
  void arrived(bool throws) {
    for_each([&](auto& round) { round.arrived(throws); });
  }
  template <class Consumer>
  void consume(const Consumer& consumer) {
    for_each([&](auto& round) { round.consume(consumer); });
  }
  template <class Functor>
  auto gated(const Functor& f) const {
    return const_cast<Rounds*>(this)->envelope().gated(f);
  }
  void await() {
    for_each([](auto& round) { round.await(); });
  }
  void settle(std::uint64_t step) {
    await();
    // Consuming the means may also find damage.
    for_each([&](auto& round) {
      if (&round.envelope() != &envelope()) envelope().absorb(executor_, round.envelope());
    });
    envelope().settle(executor_, step);
  }
  double notes() { return full_ ? full_->notes() : 0; }
  index_t most_bytes(bool told = false) const {
    index_t bytes = 0;
    const_cast<Rounds*>(this)->for_each([&](auto& round) { bytes += round.most_bytes(told); });
    return bytes;
  }
  /// Returns the envelope of one of the rounds, which an outer round may lend while no packets are in flight.
  Envelope<E>& envelope() {
    Envelope<E>* first = nullptr;
    for_each([&](auto& round) {
      if (first == nullptr) first = &round.envelope();
    });
    return *first;
  }

  const Range& compressed() const { return compressed_; }
  void set_compressor(const C& compressor) {
    for_each_branch([&]<std::size_t K, class Branch>(Index<K, Branch>) {
      if (rounds<K>()) rounds<K>()->set_compressor(compressor.template branch<K>().compressor);
    });
  }
  /// Returns the view of the error feedback's state that branches share.
  auto feedback() { return feedback_->view(); }
  const Range& fed_back() const { return fed_back_; }
  template <class Visit>
  TERSE_COLD void walk(Visit&& visit) {
    feedback_->walk(visit);
    for_each_branch([&]<std::size_t K, class Branch>(Index<K, Branch>) {
      const std::string prefix = "branch_" + std::to_string(K) + "_";
      if (rounds<K>())
        rounds<K>()->walk([&](const std::string& name, auto&&... rest) {
          visit(prefix + name, std::forward<decltype(rest)>(rest)...);
        });
    });
  }

 private:
  template <std::size_t K, class Branch>
  struct Index {};

  static constexpr bool shares(std::size_t branch) {
    constexpr bool shared[] = {!Branches::has_own_feedback...};
    return shared[branch];
  }
  template <std::size_t K>
  auto& rounds() {
    return std::get<K>(rounds_);
  }
  /// Calls use(Index<K, Branch>) for the branches that compress.
  template <class Use>
  static void for_each_branch(Use&& use) {
    [&]<std::size_t... K>(std::index_sequence<K...>) {
      (
          [&] {
            if constexpr (compresses<Branches>) use(Index<K, Branches>{});
          }(),
          ...);
    }
    (std::index_sequence_for<Branches...>{});
  }
  /// Calls use(rounds) for the rounds that exist, in the same order on all ranks.
  template <class Use>
  void for_each(Use&& use) {
    if (full_) use(*full_);
    for_each_branch([&]<std::size_t K, class Branch>(Index<K, Branch>) {
      if (rounds<K>()) use(*rounds<K>());
    });
  }

  E executor_;
  bool in_stream_order_;
  Range compressed_, fed_back_;
  std::optional<typename F::template State<E>> feedback_;
  Maybe<Full> full_;  // the round of full-precision segments
  std::tuple<Maybe<RoundsOf<Branches>>...> rounds_;
  bool absorbed_ = false;
};

}  // namespace terse::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/error_feedback/none.hpp"
#include "terse/error_feedback/remembered.hpp"
#include "terse/pipeline/ac_sgd.hpp"
#include "terse/pipeline/row_section.hpp"
#include "terse/pipeline/row_visit.hpp"
#include "terse/topology/envelope.hpp"

namespace terse {

namespace detail {

TERSE_NUMERICS_BEGIN

/// A row's copy m, and the destination of its activations.
template <class Cursor, Number A>
struct CopyOfRow {
  Cursor copy;
  Rows<A> rows;
  float* held;  // 64 floats, for cursors that write blocks

  TERSE_HD void enter(const Piece& piece) {
    copy.enter(piece);
    rows.enter(piece);
  }
  TERSE_HD void enter_block(index_t first) {
    detail::enter_block(copy, first);
    if constexpr (requires { copy.hold(held); }) copy.hold(held);
  }
  TERSE_HD void leave_block(index_t first, int count) { detail::leave_block(copy, first, count); }
};

/// Sets x = m + the decoded change; m = R(x).
template <class Cursor, Number A>
struct Recall : CopyOfRow<Cursor, A> {
  TERSE_HD void operator()(const Piece&, index_t i, bool, float sum) const {
    const float x = this->copy.load(i) + sum;
    this->rows[i] = delivered<A>(x);
    this->copy.store(i, x);
  }
};

/// Sets x = the decoded activation; m = R(x). On the sender's side, which has no rows, sets m alone.
template <class Cursor, Number A, bool Delivers>
struct FirstVisit : CopyOfRow<Cursor, A> {
  TERSE_HD void operator()(const Piece&, index_t i, bool, float sum) const {
    if constexpr (Delivers) this->rows[i] = delivered<A>(sum);
    this->copy.store(i, sum);
  }
};

TERSE_NUMERICS_END

}  // namespace detail

/// The activations of one boundary, on the sending or the receiving side: packets, and the copies of examples if the
/// policy P remembers. Memory is allocated at construction.
///
/// Packet: header; changes of rows that were seen before; other rows; a note of 8 bytes. Only the examples determine the
/// section of each row, so that both sides have the same packet layout.
template <BoundaryPolicy P, Executor E>
class Activations {
  static_assert(check_boundary<P>());
  static constexpr bool on_host = std::is_same_v<typename E::memory, memory::host>;
  static constexpr auto header = static_cast<index_t>(sizeof(PacketHeader));

  struct NoCopies {};
  template <class Policy>
  static auto format_type() {
    if constexpr (Policy::remembers)
      return std::type_identity<typename decltype(Policy::memory)::Format>{};
    else
      return std::type_identity<float>{};
  }
  using Format = typename decltype(format_type<P>())::type;
  /// True if copies are rounded by a separate verb, after the verb that reads a packet.
  static constexpr bool rounds_late = GridExecutor<E> && RowFormat<Format>::blocks;
  template <class Any>
  static auto cursor_type() {
    if constexpr (rounds_late)
      return std::type_identity<typename RowFormat<Any>::GridCursor>{};
    else
      return std::type_identity<typename RowFormat<Any>::Cursor>{};
  }
  using Cursor = typename decltype(cursor_type<Format>())::type;
  using Whole = std::remove_cvref_t<decltype(std::declval<const P&>().whole())>;
  // Also accepts biased compressors: later changes correct a first visit, and the baseline's bias is intended.
  using WholeSection = detail::RowSection<Whole, Unchecked<NoErrorFeedback>, E>;
  template <class Policy>
  static auto changes_type() {
    if constexpr (Policy::remembers)
      return std::type_identity<detail::RowSection<
          std::remove_cvref_t<decltype(std::declval<const Policy&>().changes())>, Remembered<Format>, E>>{};
    else
      return std::type_identity<NoCopies>{};
  }
  template <class Policy>
  static auto state_type() {
    if constexpr (Policy::remembers)
      return std::type_identity<typename std::remove_cvref_t<decltype(Policy::memory)>::template State<E>>{};
    else
      return std::type_identity<NoCopies>{};
  }

 public:
  /// Allocates for micro-batches of up to `rows` rows of `elements` elements at `positions` positions.
  Activations(E executor, const P& policy, index_t rows, index_t elements, index_t positions)
      : executor_(executor),
        elements_(elements),
        positions_(positions),
        row_bytes_(RowFormat<Format>::bytes(elements)),
        whole_(executor, policy.whole(), {}, rows, elements),
        table_(P::remembers ? rows : 0),
        // Has one extra row, for examples without a copy.
        copies_(make_copies(policy, row_bytes_)),
        changes_(make_changes(executor, policy, table_.data(), rows, elements)),
        held_(!RowFormat<Format>::blocks ? 0
              : rounds_late              ? rows * aligned(elements)
                                         : alignment) {
    places_.reserve(static_cast<std::size_t>(rows));
    cleared_.reserve(static_cast<std::size_t>(rows));
    if constexpr (P::remembers) unkept_ = policy.capacity;
  }

  /// Returns the maximum size of a packet, in bytes.
  index_t largest_packet() const {
    index_t section = whole_.largest();
    // Each section ends at a multiple of 8.
    if constexpr (P::remembers) section = std::max(section, changes_.largest()) + 16;
    return header + section + note_bytes;
  }

  /// Lays out a packet of these rows; returns its bytes. Later calls refer to these rows.
  index_t lay_out(std::span<const detail::RowVisit> visits) {
    whole_.clear();
    if constexpr (P::remembers) changes_.clear();
    places_.clear();
    cleared_.clear();
    fresh_ = padded_ = false;
    rows_ = 0;
    for (const detail::RowVisit& visit : visits) {
      const index_t row = rows_++, count = count_of(visit);
      padded_ = padded_ || count < elements_;
      if constexpr (P::remembers) {
        if (visit.seen)
          changes_.add(row, count);
        else
          whole_.add(row, count);
        if (!visit.seen && count < elements_) cleared_.push_back(copy_of(visit));
        fresh_ = fresh_ || (!visit.seen && visit.slot != detail::ExampleIndex::none);
        places_.push_back(copy_of(visit));
      } else {
        whole_.add(row, count);
      }
    }
    index_t end = header;
    if constexpr (P::remembers) {
      end = changes_.lay_out(end);
      put(executor_, view<std::byte* const>(places_),
          view<std::byte*, typename E::memory>(table_.data(), static_cast<index_t>(places_.size())));
    }
    note_at_ = whole_.lay_out(end);
    return note_at_ + note_bytes;
  }
  index_t note_at() const { return note_at_; }

  /// Writes a packet except its header, and updates the copies.
  template <Number A, class Envelope>
  void encode(const A* activations, const EncodeContext& context, std::uint64_t note, Envelope& envelope,
              std::byte* packet) {
    const detail::RowMessage<A> message{rows(activations)};
    if constexpr (P::remembers) {
      changes_.encode(message, context, packet);
      envelope.note(executor_, changes_.codec());
    }
    whole_.encode(message, context, packet);
    envelope.note(executor_, whole_.codec());
    if constexpr (P::remembers)
      if (fresh_) {
        clear_copies();
        whole_.decode(packet, context.shared,
                      detail::FirstVisit<Cursor, A, false>{{cursor(), {}, held_.data()}});
        if constexpr (rounds_late) round(whole_.range(), rounding());
      }
    put(executor_, view<const std::uint64_t>(&note, 1),
        view<std::uint64_t, typename E::memory>(reinterpret_cast<std::uint64_t*>(packet + note_at_), 1));
  }
  /// Checks a received packet, see Envelope.
  template <class Envelope>
  void accept(Envelope& envelope, const std::byte* packet, std::uint64_t place, int sender) {
    const auto bytes = static_cast<std::uint64_t>(note_at_ + note_bytes);
    const std::uint32_t origin = detail::origin_of(Phase::forward, sender);
    whole_.watch(envelope.damage(), origin);
    if constexpr (P::remembers) {
      changes_.watch(envelope.damage(), origin);
      envelope.accept(executor_, changes_.codec(), changes_.portion(), packet, bytes, bytes, place, sender);
    }
    envelope.accept(executor_, whole_.codec(), whole_.portion(), packet, bytes, bytes, place, sender);
  }
  /// Decodes the packet, and updates the copies. Padding is set to zeros.
  template <Number A, class Envelope>
  void decode(const std::byte* packet, const StepDraw& shared, const Envelope& envelope, A* activations) {
    if (padded_) fill(executor_, view<A, typename E::memory>(activations, rows_ * elements_), A{});
    if constexpr (P::remembers) {
      clear_copies();
      changes_.decode(packet, shared,
                      envelope.gated(detail::Recall<Cursor, A>{{cursor(), rows(activations), held_.data()}}));
      whole_.decode(
          packet, shared,
          envelope.gated(detail::FirstVisit<Cursor, A, true>{{cursor(), rows(activations), held_.data()}}));
      if constexpr (rounds_late) {
        round(changes_.range(), envelope.gated(rounding()));
        round(whole_.range(), envelope.gated(rounding()));
      }
    } else {
      whole_.decode(packet, shared, envelope.gated(detail::TakeRows<A>{rows(activations)}));
    }
  }

  /// Returns a hash of row `row`'s copy; 0 if there is none yet.
  std::uint64_t proof(std::span<const detail::RowVisit> visits, index_t row) requires on_host {
    const detail::RowVisit& visit = visits[static_cast<std::size_t>(row)];
    return P::remembers && visit.seen
               ? detail::hash_bytes(copy_of(visit), static_cast<std::size_t>(row_bytes_))
               : 0;
  }
  /// Returns ||a||^2 and ||a - m||^2 of a row's data, without padding.
  template <Number A>
  std::pair<double, double> squares(std::span<const detail::RowVisit> visits, index_t row,
                                    const A* activations) requires on_host {
    std::byte* const copy = copy_of(visits[static_cast<std::size_t>(row)]);
    typename RowFormat<Format>::Cursor cursor(&copy, elements_);
    const A* const a = activations + row * elements_;
    cursor.enter({0, 0, elements_});
    double whole = 0, apart = 0;
    const index_t count = count_of(visits[static_cast<std::size_t>(row)]);
    for (index_t i = 0; i < count; ++i) {
      if (i % alignment == 0) detail::enter_block(cursor, i);
      const double x = static_cast<double>(widened(a[i])), d = x - static_cast<double>(cursor.load(i));
      whole += x * x;
      apart += d * d;
    }
    return {whole, apart};
  }

  /// Returns the copies, contiguous by slot, `row_bytes()` each.
  std::byte* copies() {
    if constexpr (P::remembers)
      return copies_.data();
    else
      return nullptr;
  }
  index_t row_bytes() const { return row_bytes_; }
  /// Hints that the copies of these visits will be needed soon.
  void expect(std::span<const detail::RowVisit> visits) {
    if constexpr (requires { copies_.expect(index_t{}); })
      for (const detail::RowVisit& visit : visits)
        if (visit.seen) copies_.expect(visit.slot);
  }

 private:
  static constexpr index_t note_bytes = 8;

  static auto make_copies(const P& policy, index_t row_bytes) {
    if constexpr (P::remembers)
      return typename decltype(state_type<P>())::type(policy.memory, policy.capacity + 1, row_bytes);
    else
      return NoCopies{};
  }
  static auto make_changes(E executor, const P& policy, std::byte* const* table, index_t rows,
                           index_t elements) {
    if constexpr (P::remembers)
      return typename decltype(changes_type<P>())::type(executor, policy.changes(),
                                                        Remembered<Format>{table, elements}, rows, elements);
    else
      return NoCopies{};
  }
  std::byte* copy_of(const detail::RowVisit& visit) {
    return copies() + (visit.slot == detail::ExampleIndex::none ? unkept_ : visit.slot) * row_bytes_;
  }
  index_t count_of(const detail::RowVisit& visit) const { return visit.length * (elements_ / positions_); }
  /// Zeroes the copies of new examples with padding, because a later visit may fill the padding and the slot may contain an
  /// older example's copy.
  void clear_copies() {
    for (std::byte* const copy : cleared_)
      fill(executor_, view<std::byte, typename E::memory>(copy, row_bytes_), std::byte{});
  }
  Cursor cursor() {
    if constexpr (rounds_late)
      return Cursor(table_.data(), elements_, held_.data(), 0);
    else
      return Cursor(table_.data(), elements_);
  }
  template <class F>
  void round(const Range& range, const F& f) {
    for_each(executor_, range, NoMask{}, NoPackets{}, f);
  }
  auto rounding() { return typename RowFormat<Format>::Round(cursor()); }
  template <class A>
  detail::Rows<A> rows(A* data) const {
    return {data, aligned(elements_) - elements_};
  }

  E executor_;
  index_t elements_, positions_, row_bytes_, rows_ = 0, unkept_ = 0, note_at_ = header;
  WholeSection whole_;
  std::vector<std::byte*> places_;                // the rows' copies
  buffer<std::byte*, typename E::memory> table_;  // the rows' copies, for functors
  typename decltype(state_type<P>())::type copies_;
  typename decltype(changes_type<P>())::type changes_;
  buffer<float, typename E::memory> held_;
  std::vector<std::byte*> cleared_;  // copies to clear before they are written
  bool fresh_ = false;
  bool padded_ = false;  // true if a row has positions that are not sent
};

}  // namespace terse

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "terse/error_feedback/none.hpp"
#include "terse/pipeline/concept.hpp"
#include "terse/pipeline/row_section.hpp"
#include "terse/pipeline/row_visit.hpp"
#include "terse/topology/envelope.hpp"

namespace terse {

/// The gradients of one boundary, on either side. Packet: header; rows; a note of 8 bytes. Padding is received as zeros.
template <BoundaryPolicy P, Executor E>
class ActivationGradients {
  static constexpr auto header = static_cast<index_t>(sizeof(PacketHeader));
  using Compressor = std::remove_cvref_t<decltype(std::declval<const P&>().gradients())>;

 public:
  /// Allocates for micro-batches of up to `rows` rows of `elements` elements at `positions` positions.
  ActivationGradients(E executor, const P& policy, index_t rows, index_t elements, index_t positions)
      : executor_(executor),
        elements_(elements),
        positions_(positions),
        section_(executor, policy.gradients(), {}, rows, elements) {}

  index_t largest_packet() const { return header + section_.largest() + 8; }
  /// Lays out a packet of these rows; returns its bytes.
  index_t lay_out(std::span<const detail::RowVisit> visits) {
    section_.clear();
    rows_ = 0;
    padded_ = false;
    for (const detail::RowVisit& visit : visits) {
      padded_ = padded_ || visit.length < positions_;
      section_.add(rows_++, visit.length * (elements_ / positions_));
    }
    return (note_at_ = section_.lay_out(header)) + 8;
  }
  index_t note_at() const { return note_at_; }

  template <Number A, class Envelope>
  void encode(const A* gradients, const EncodeContext& context, Envelope& envelope, std::byte* packet) {
    section_.encode(detail::RowMessage<A>{{gradients, aligned(elements_) - elements_}}, context, packet);
    envelope.note(executor_, section_.codec());
  }
  template <class Envelope>
  void accept(Envelope& envelope, const std::byte* packet, std::uint64_t place, int sender) {
    const auto bytes = static_cast<std::uint64_t>(note_at_ + 8);
    section_.watch(envelope.damage(), detail::origin_of(Phase::backward, sender));
    envelope.accept(executor_, section_.codec(), section_.portion(), packet, bytes, bytes, place, sender);
  }
  template <Number A, class Envelope>
  void decode(const std::byte* packet, const StepDraw& shared, const Envelope& envelope, A* gradients) {
    if (padded_) fill(executor_, view<A, typename E::memory>(gradients, rows_ * elements_), A{});
    section_.decode(packet, shared,
                    envelope.gated(detail::TakeRows<A>{{gradients, aligned(elements_) - elements_}}));
  }

 private:
  E executor_;
  index_t elements_, positions_, rows_ = 0, note_at_ = header;
  bool padded_ = false;  // true if a row has positions that are not sent
  detail::RowSection<Compressor, NoErrorFeedback, E> section_;
};

}  // namespace terse

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "terse/error_feedback/none.hpp"
#include "terse/pipeline/concept.hpp"
#include "terse/pipeline/row_section.hpp"
#include "terse/topology/envelope.hpp"

namespace terse {

/// The gradients of one boundary, on either side. Packet: header; rows; a note of 8 bytes.
template <BoundaryPolicy P, Executor E>
class ActivationGradients {
  static constexpr auto header = static_cast<index_t>(sizeof(PacketHeader));
  using Compressor = std::remove_cvref_t<decltype(std::declval<const P&>().gradients())>;

 public:
  ActivationGradients(E executor, const P& policy, index_t rows, index_t elements)
      : executor_(executor),
        elements_(elements),
        section_(executor, policy.gradients(), {}, rows, elements) {}

  index_t largest_packet() const { return header + section_.largest() + 8; }
  /// Lays a packet of `rows` rows out; returns its bytes.
  index_t lay_out(index_t rows) {
    section_.clear();
    for (index_t row = 0; row < rows; ++row) section_.add(row);
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
    section_.decode(packet, shared,
                    envelope.gated(detail::TakeRows<A>{{gradients, aligned(elements_) - elements_}}));
  }

 private:
  E executor_;
  index_t elements_, note_at_ = header;
  detail::RowSection<Compressor, NoErrorFeedback, E> section_;
};

}  // namespace terse

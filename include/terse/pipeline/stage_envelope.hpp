// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/packet.hpp"
#include "terse/core/step_scalars.hpp"
#include "terse/executor/concept.hpp"
#include "terse/pipeline/agreement.hpp"
#include "terse/pipeline/batch.hpp"
#include "terse/topology/envelope.hpp"

namespace terse::detail {

/// Kind of a message between stages: the verdict is the last message of a step, the total the last one of an evaluation.
enum class MessageKind : std::uint64_t { activation, gradient, verdict, evaluation, total };

/// An Envelope for messages between stages: each packet identifies its message in the batch and its examples. Errors name
/// stages and micro-batches.
template <Executor E>
class StageEnvelope {
  static constexpr bool on_host = std::is_same_v<typename E::memory, memory::host>;

 public:
  /// Keeps a reference to `batch`.
  StageEnvelope(E executor, const Batch& batch, int rank)
      : executor_(executor), batch_(batch), rank_(rank), now_(1) {}

  /// Begins the step of an open batch. `agreement` is a hash on which all stages agree.
  void open(std::uint64_t agreement) {
    round_ = {batch_.round(), agreement};
    put(executor_, view<const StepScalars>(&round_, 1), now_.all());
    envelope_.open(executor_, {round_.step, round_.agreement, now_.data()}, rank_);
  }
  /// Returns the Envelope for code that reads and writes the rest of packets.
  Envelope<E>& inner() { return envelope_; }
  /// Records that a value of this stage is not finite.
  void note() { envelope_.note(executor_); }

  /// Writes the header of this stage's message j.
  void stamp(std::byte* packet, index_t bytes, MessageKind kind, index_t j) {
    envelope_.stamp(executor_, static_cast<std::uint64_t>(bytes), place(kind, j, rank_), packet);
  }
  /// Checks message j of `sender`. `side` knows its layout.
  template <class Side>
  void accept(Side& side, const std::byte* packet, MessageKind kind, index_t j, int sender) {
    try {
      side.accept(envelope_, packet, place(kind, j, sender), sender);
      envelope_.arrived(executor_, false);
    } catch (const wire_error&) {
      if constexpr (on_host) {
        PacketHeader header;
        std::memcpy(&header, packet, sizeof header);
        const std::uint64_t check = mix_hash(round_.agreement, place(kind, j, sender));
        explain(find_fault(header, {0, header.length, round_.step, check}), j, sender);
      }
      throw;
    }
  }
  /// Ends the step; returns the sender of messages that were not finite, as packet flags. Throws wire_error if a device
  /// has found an error, or another stage has refused a packet.
  std::uint16_t conclude() {
    std::uint16_t flags;
    try {
      flags = envelope_.conclude(executor_, round_.step);
    } catch (const wire_error&) {
      if constexpr (!on_host) explain(envelope_.found().fault, -1, envelope_.found().sender);
      throw;
    }
    if (is_refusal(flags)) throw_refused(flags, rank_, batch_.step());
    return flags;
  }

 private:
  std::uint64_t place(MessageKind kind, index_t j, int sender) const {
    const std::uint64_t rows = j < batch_.count() ? batch_.hashes()[static_cast<std::size_t>(j)] : 0;
    return mix_hash(mix_hash(rows, static_cast<std::uint64_t>(kind)),
                    static_cast<std::uint64_t>(sender) << 40 ^ static_cast<std::uint64_t>(j));
  }
  /// Throws a wire_error that explains why a packet belongs to another step or to other examples. Lengths follow
  /// from the examples. A device doesn't record the number of the message: then j is negative.
  void explain(const PacketFault& fault, index_t j, int sender) const {
    const std::string stage = "stage " + std::to_string(sender);
    const auto step = static_cast<std::int64_t>(batch_.step());
    if (fault.field == PacketFault::step)
      throw wire_error(stage + " is in step " + std::to_string(fault.found) + ", and this stage in step " +
                           std::to_string(round_.step) + one_step + or_damaged,
                       rank_, step);
    const bool differs = fault.field == PacketFault::check || fault.field == PacketFault::length;
    if (differs && j < batch_.count())
      throw wire_error(stage + " and this stage work on different examples" +
                           (j < 0 ? "" : " in micro-batch " + std::to_string(j)) + one_batch + or_damaged,
                       rank_, step);
    if (differs)
      throw wire_error(stage + "'s packet is not the one that ends this step" + or_damaged, rank_, step);
  }
  static constexpr const char* or_damaged = ". Or the packet was damaged on its way";

  E executor_;
  const Batch& batch_;
  int rank_;
  Envelope<E> envelope_;
  StepScalars round_;
  buffer<StepScalars, typename E::memory> now_;
};

}  // namespace terse::detail

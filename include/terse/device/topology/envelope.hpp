// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "terse/device/topology/verdict.hpp"
#include "terse/topology/envelope.hpp"

namespace terse {

namespace detail {
template <class Codec>
concept SaysScales = requires(const Codec& codec, const Range& range) {
  codec.compressor().scale_floats(range);
};
}  // namespace detail

template <GridExecutor E>
class Envelope<E> {
 public:
  Envelope() : verdict_(1), found_(1) {}

  // The calls below are deferred to the next kernel of this envelope, usually one that stamps or closes the round.

  void open(E ex, const detail::RoundHeader& round, int rank) {
    // It may be left from an abandoned round: taking the note resets its flag to 0.
    if (next_.bad != nullptr) launch(ex);
    rank_ = rank;
    next_ = {};
    next_.now = round.now;
    next_.opens = true;
    together_ = false;
  }
  template <class Codec>
  void note(E ex, Codec& codec) {
    if (next_.bad != nullptr) launch(ex);
    next_.bad = codec.bad();
  }
  void note(E ex) {
    settle_next(ex);
    ex.launch(detail::NoteKernel{verdict_.data(), detail::flags_of(rank_)}, 1);
  }
  void stamp(E ex, std::uint64_t bytes, std::uint64_t place, std::byte* packet) {
    if (next_.leaving.count == detail::most_together) launch(ex);
    next_.leaving.packets[next_.leaving.count++] = {bytes, place, packet};
    if (!together_) launch(ex);
  }
  template <class Codec>
  void accept(E ex, Codec& codec, const Portion& portion, const std::byte* packet, std::uint64_t least,
              std::uint64_t most, std::uint64_t place, int sender, int from = -1) {
    // In one kernel, opening, noting and stamping would come after accepting.
    if (next_.opens || next_.bad != nullptr || next_.leaving.count > 0 ||
        next_.arrived.count == detail::most_together)
      launch(ex);
    detail::ArrivedPacket arrived{least, most, place,  packet, packet + portion.section_at,
                                  0,     0,    sender, from};
    constexpr bool checks = !Codec::lossless && !detail::SaysScales<Codec>;
    if (next_.arrived.count > 0 && checks_.codec != (checks ? &codec : nullptr)) launch(ex);
    if constexpr (!Codec::lossless) {
      if constexpr (!checks) {
        arrived.count = codec.compressor().scale_floats(portion.compressed);
        arrived.limit = codec.compressor().largest_scale();
      } else {
        checks_.codec = &codec;
        checks_.run = [](void* which, std::span<const Portion* const> portions,
                         const std::byte* const* packets, detail::Findings* findings) {
          static_cast<Codec*>(which)->check(portions, packets, findings);
        };
        checks_.portions[next_.arrived.count] = &portion;
        checks_.packets[next_.arrived.count] = packet;
      }
    }
    next_.arrived.packets[next_.arrived.count++] = arrived;
    if (!together_) launch(ex);
  }
  template <class Act>
  void together(E ex, const Act& act) {
    together_ = true;
    act();
    together_ = false;
    if (next_.leaving.count > 0) launch(ex);
  }
  void verify(E ex) { settle_next(ex); }
  void absorb(E ex, Envelope& other) {
    settle_next(ex);
    other.settle_next(ex);
    ex.launch(detail::AbsorbKernel{verdict_.data(), other.verdict_.data()}, 1);
  }
  void arrived(E ex, bool throws) {
    next_.concludes = true;
    next_.throws = throws;
    launch(ex);
  }
  void check_read(E ex, std::uint32_t& wrong, int sender) { check_read(ex, &wrong, {&sender, 1}); }
  /// Checks the reads of several packets, at most most_packets.
  void check_read(E ex, std::uint32_t* wrong, std::span<const int> senders) {
    settle_next(ex);
    detail::CheckReadKernel kernel{verdict_.data(), wrong, static_cast<int>(senders.size()), {}};
    std::copy(senders.begin(), senders.end(), kernel.senders);
    ex.launch(kernel, 1);
  }
  std::uint64_t* damage() { return &verdict_.data()->damage; }
  template <class F>
  detail::Gated<F> gated(const F& f) const {
    return {f, verdict_.data()};
  }
  void settle(E ex, std::uint64_t step) {
    const detail::Verdict& verdict = read(ex, step);
    if (detail::is_refusal(verdict.flags)) detail::throw_refused(verdict.flags, rank_, step);
    if (verdict.non_finite) detail::throw_non_finite(verdict.flags, rank_, step);
    if (verdict.unreadable) detail::throw_unreadable(verdict.sender, rank_, step);
  }
  std::uint16_t conclude(E ex, std::uint64_t step) { return read(ex, step).flags; }
  /// Returns the verdict that `settle` or `conclude` read last.
  const detail::Verdict& found() const { return *found_.data(); }

 private:
  void settle_next(E ex) {
    if (next_.opens || next_.arrived.count > 0 || next_.bad != nullptr) launch(ex);
  }
  void launch(E ex) {
    next_.verdict = verdict_.data();
    next_.own = detail::flags_of(rank_);
    next_.refusal = detail::refusal_of(rank_);
    index_t scales = 0, blocks = 0;
    for (int k = 0; k < next_.arrived.count; ++k) {
      scales += next_.arrived.packets[k].count;
      blocks += detail::blocks_for(next_.arrived.packets[k].count, detail::ScalesKernel::per_block);
    }
    if (checks_.codec != nullptr && next_.arrived.count > 0)
      checks_.run(checks_.codec, {checks_.portions, static_cast<std::size_t>(next_.arrived.count)},
                  checks_.packets, verdict_.data()->findings);
    checks_.codec = nullptr;
    next_.looks = scales <= detail::ScalesKernel::per_block;
    if (!next_.looks) ex.launch(detail::ScalesKernel{next_.verdict, next_.arrived}, blocks);
    ex.launch(next_, 1);
    const StepScalars* const now = next_.now;
    next_ = {};
    next_.now = now;
  }
  const detail::Verdict& read(E ex, std::uint64_t step) {
    settle_next(ex);
    fetch(ex, in<E, detail::Verdict>(verdict_.all()), view<detail::Verdict>(found_.data(), 1));
    const detail::Verdict& found = *found_.data();
    refuse(found.fault, detail::text_of(static_cast<detail::SectionFault>(found.fault.found)), step,
           found.sender, rank_, found.from);
    if (found.damage != detail::no_damage) detail::throw_damage(found.damage, rank_, step);
    return found;
  }

  /// A codec's own check of received packets, to run before the next kernel.
  struct Checks {
    void* codec = nullptr;
    void (*run)(void*, std::span<const Portion* const>, const std::byte* const*, detail::Findings*) = nullptr;
    const Portion* portions[detail::most_together] = {};
    const std::byte* packets[detail::most_together] = {};
  };

  buffer<detail::Verdict, typename E::memory> verdict_;
  buffer<detail::Verdict, typename E::staging> found_;
  int rank_ = 0;
  bool together_ = false;
  detail::VerdictKernel next_{};
  Checks checks_;
};

}  // namespace terse

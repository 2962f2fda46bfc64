// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "terse/topology/envelope.hpp"
#include "terse/topology/grid_verdict.hpp"

namespace terse {

template <GridExecutor E>
class Envelope<E> {
 public:
  Envelope() : verdict_(1) {}

  void open(E ex, const detail::RoundHeader& round, int rank) {
    now_ = round.now;
    rank_ = rank;
    settle_note(ex);
    stamps_.count = accepts_.count = 0;
    together_ = false;
    fill(ex, verdict_.all(), detail::Verdict{});
  }
  /// Put off until the next kernel of this envelope: mostly that stamps, and notes itself.
  template <class Codec>
  void note(E ex, Codec& codec) {
    settle_note(ex);
    bad_ = codec.bad();
  }
  void note(E ex) { ex.launch(detail::NoteKernel{verdict_.data(), nullptr, detail::flags_of(rank_)}, 1); }
  void stamp(E ex, std::uint64_t bytes, std::uint64_t place, std::byte* packet) {
    stamps_.packets[stamps_.count++] = {bytes, place, packet};
    if (!together_ || stamps_.count == detail::most_together) launch_stamps(ex);
  }
  template <class Codec>
  void accept(E ex, Codec& codec, const Portion& portion, const std::byte* packet, std::uint64_t least,
              std::uint64_t most, std::uint64_t place, int sender) {
    detail::ArrivedPacket arrived{least, most, place, packet, packet + portion.section_at, 0, 0, sender};
    bool alone = !together_;
    if constexpr (!Codec::lossless) {
      if constexpr (requires { codec.compressor().scale_floats(portion.compressed); }) {
        arrived.count = codec.compressor().scale_floats(portion.compressed);
        arrived.limit = codec.compressor().largest_scale();
      } else {
        launch_accepts(ex);
        codec.check(portion, packet, &verdict_.data()->findings);
        alone = true;
      }
    }
    accepts_.packets[accepts_.count++] = arrived;
    if (alone || accepts_.count == detail::most_together) launch_accepts(ex);
  }
  template <class Act>
  void together(E ex, const Act& act) {
    together_ = true;
    act();
    together_ = false;
    launch_stamps(ex);
    launch_accepts(ex);
  }
  void absorb(E ex, Envelope& other) {
    settle_note(ex);
    other.settle_note(ex);
    ex.launch(detail::AbsorbKernel{verdict_.data(), other.verdict_.data()}, 1);
  }
  void arrived(E ex, bool throws) {
    settle_note(ex);
    ex.launch(detail::ArrivedKernel{verdict_.data(), throws}, 1);
  }
  void check_read(E ex, std::uint32_t& wrong, int sender) {
    ex.launch(detail::CheckReadKernel{verdict_.data(), &wrong, sender}, 1);
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
  /// What `settle` or `conclude` has read last.
  const detail::Verdict& found() const { return found_; }

 private:
  void settle_note(E ex) {
    if (bad_ != nullptr)
      ex.launch(detail::NoteKernel{verdict_.data(), std::exchange(bad_, nullptr), detail::flags_of(rank_)},
                1);
  }
  void launch_stamps(E ex) {
    if (stamps_.count == 0) return;
    stamps_.verdict = verdict_.data();
    stamps_.now = now_;
    stamps_.bad = std::exchange(bad_, nullptr);
    stamps_.own = detail::flags_of(rank_);
    stamps_.refusal = detail::refusal_of(rank_);
    ex.launch(stamps_, 1);
    stamps_.count = 0;
  }
  void launch_accepts(E ex) {
    if (accepts_.count == 0) return;
    settle_note(ex);
    accepts_.verdict = verdict_.data();
    index_t scales = 0, blocks = 0;
    for (int k = 0; k < accepts_.count; ++k) {
      scales += accepts_.packets[k].count;
      blocks += detail::blocks_for(accepts_.packets[k].count, detail::ScalesKernel::per_block);
    }
    const bool many = scales > detail::ScalesKernel::per_block;
    if (many) ex.launch(detail::ScalesKernel{accepts_}, blocks);
    ex.launch(detail::AcceptKernel{accepts_, now_, detail::refusal_of(rank_), !many}, 1);
    accepts_.count = 0;
  }
  const detail::Verdict& read(E ex, std::uint64_t step) {
    settle_note(ex);
    fetch(ex, in<E, detail::Verdict>(verdict_.all()), view<detail::Verdict>(&found_, 1));
    refuse(found_.fault, detail::text_of(static_cast<detail::SectionFault>(found_.fault.found)), step,
           found_.sender, rank_);
    if (found_.damage != no_damage) detail::throw_damage(found_.damage, rank_, step);
    return found_;
  }

  buffer<detail::Verdict, typename E::memory> verdict_;
  detail::Verdict found_;
  const StepScalars* now_ = nullptr;
  int rank_ = 0;
  std::uint32_t* bad_ = nullptr;  // of a note that is put off
  detail::StampKernel stamps_{};  // of a batch so far
  detail::ArrivedPackets accepts_{};
  bool together_ = false;
};

}  // namespace terse

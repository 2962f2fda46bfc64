// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/section_fault.hpp"
#include "terse/executor/grid.hpp"
#include "terse/topology/envelope.hpp"

namespace terse {

namespace detail {

/// What a device knows of the packets of a round.
struct Verdict {
  PacketFault fault;
  Findings findings;  // of the compressor's own check of the packet at hand
  std::uint64_t damage = no_damage;
  std::int32_t sender = 0;
  std::uint16_t flags = PacketHeader::finite;
  bool closed = false;      // the mean must not be consumed
  bool non_finite = false;  // because a gradient was not finite
  bool unreadable = false;  // because the sender's packet couldn't be read beside this rank's own
};

/// The packet's header as it must be in this step.
TERSE_HD inline PacketHeader header_now(const StepScalars* now, std::uint64_t bytes, std::uint64_t place) {
  PacketHeader header;
  header.step = now->step;
  header.length = bytes;
  header.check = mix_hash(now->agreement, place);
  return header;
}

struct NoteKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  Verdict* verdict;
  std::uint32_t* bad;  // without it, it is bad
  std::uint16_t own;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    if (block.thread() != 0 || (bad != nullptr && *bad == 0)) return;
    if (bad != nullptr) *bad = 0;
    verdict->flags = merged_flags(verdict->flags, own);
  }
};

struct StampKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  const Verdict* verdict;
  const StepScalars* now;
  std::uint64_t bytes, place;
  std::uint16_t refusal;
  std::byte* packet;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    if (block.thread() != 0) return;
    PacketHeader header = header_now(now, bytes, place);
    header.flags = verdict->damage == no_damage ? verdict->flags : merged_flags(verdict->flags, refusal);
    std::memcpy(__builtin_assume_aligned(packet, 8), &header, sizeof header);
  }
};

/// The header, by the first thread, the `count` floats that no finite message has beyond `limit`, and what else was
/// found.
struct AcceptKernel {
  static constexpr bool cooperative = true;
  struct Shared {
    bool wrong;
  };
  Verdict* verdict;
  const StepScalars* now;
  std::uint64_t least, most, place;
  std::int32_t sender;
  std::uint16_t refusal;
  const std::byte* packet;
  const std::byte* floats;
  index_t count;
  float limit;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    if (block.thread() == 0) shared.wrong = false;
    block.sync();
    bool wrong = false;
    for (index_t k = block.thread(); k < count; k += block_threads)
      wrong = wrong || !(magnitude(load_aligned<float>(floats + 4 * k)) <= limit);
    if (block.ballot(wrong) != 0 && block.thread() % 32 == 0) shared.wrong = true;
    block.sync();
    if (block.thread() != 0) return;
    PacketHeader header;
    std::memcpy(&header, __builtin_assume_aligned(packet, 8), sizeof header);
    const PacketHeader right = header_now(now, most, place);
    PacketFault fault = find_fault(header, {least, most, right.step, right.check});
    const Findings findings = verdict->findings;
    verdict->findings = {};
    if (fault.field == PacketFault::none && (shared.wrong || findings.any()))
      fault = {PacketFault::content,
               static_cast<std::uint64_t>(findings.any() ? findings.fault() : SectionFault::unlikely), 0};
    if (fault.field == PacketFault::none) {
      verdict->flags = merged_flags(verdict->flags, header.flags);
    } else if (verdict->fault.field == PacketFault::none) {
      verdict->fault = fault;
      verdict->sender = sender;
      verdict->flags = merged_flags(verdict->flags, refusal);
    }
  }
};

/// What another verdict of the same step has found.
struct AbsorbKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  Verdict* verdict;
  const Verdict* other;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    if (block.thread() != 0) return;
    verdict->flags = merged_flags(verdict->flags, other->flags);
    if (other->damage < verdict->damage) verdict->damage = other->damage;
    if (verdict->fault.field != PacketFault::none || other->fault.field == PacketFault::none) return;
    verdict->fault = other->fault;
    verdict->sender = other->sender;
  }
};

struct ArrivedKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  Verdict* verdict;
  bool throws;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    if (block.thread() != 0) return;
    const bool refused = (verdict->flags & PacketHeader::refused) != 0;
    verdict->non_finite = throws && !refused && verdict->flags != PacketHeader::finite;
    verdict->closed = verdict->non_finite || refused || verdict->fault.field != PacketFault::none ||
                      verdict->damage != no_damage;
  }
};

struct CheckReadKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  Verdict* verdict;
  std::uint32_t* wrong;
  std::int32_t sender;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    if (block.thread() != 0 || *wrong == 0) return;
    *wrong = 0;
    if (verdict->closed) return;
    verdict->closed = verdict->unreadable = true;
    verdict->sender = sender;
  }
};

/// Does nothing after an error.
template <class F>
struct Gated {
  F f;
  const Verdict* verdict;
  bool open = false;

  using StreamsOf = Gated;
  TERSE_HD auto streams() requires NamesStreams<F> { return f.streams(); }
  TERSE_HD bool idle() const { return !open; }
  TERSE_HD void enter(const Piece& piece) {
    open = !verdict->closed;
    terse::enter(f, piece);
  }
  template <class... Sum>
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep, Sum... sum) const {
    if (open) f(piece, i, keep, sum...);
  }
};

}  // namespace detail

template <GridExecutor E>
class Envelope<E> {
 public:
  Envelope() : verdict_(1) {}

  void open(E ex, const detail::RoundHeader& round, int rank) {
    now_ = round.now;
    rank_ = rank;
    fill(ex, verdict_.all(), detail::Verdict{});
  }
  template <class Codec>
  void note(E ex, Codec& codec) {
    ex.launch(detail::NoteKernel{verdict_.data(), codec.bad(), detail::flags_of(rank_)}, 1);
  }
  void note(E ex) { ex.launch(detail::NoteKernel{verdict_.data(), nullptr, detail::flags_of(rank_)}, 1); }
  void stamp(E ex, std::uint64_t bytes, std::uint64_t place, std::byte* packet) {
    ex.launch(detail::StampKernel{verdict_.data(), now_, bytes, place, detail::refusal_of(rank_), packet}, 1);
  }
  template <class Codec>
  void accept(E ex, Codec& codec, const Portion& portion, const std::byte* packet, std::uint64_t least,
              std::uint64_t most, std::uint64_t place, int sender) {
    index_t floats = 0;
    float limit = 0;
    if constexpr (!Codec::lossless) {
      if constexpr (requires { codec.compressor().scale_floats(portion.compressed); })
        floats = codec.compressor().scale_floats(portion.compressed),
        limit = codec.compressor().largest_scale();
      else
        codec.check(portion, packet, &verdict_.data()->findings);
    }
    ex.launch(
        detail::AcceptKernel{verdict_.data(), now_, least, most, place, sender, detail::refusal_of(rank_),
                             packet, packet + portion.section_at, floats, limit},
        1);
  }
  void absorb(E ex, const Envelope& other) {
    ex.launch(detail::AbsorbKernel{verdict_.data(), other.verdict_.data()}, 1);
  }
  void arrived(E ex, bool throws) { ex.launch(detail::ArrivedKernel{verdict_.data(), throws}, 1); }
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
  const detail::Verdict& read(E ex, std::uint64_t step) {
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
};

}  // namespace terse

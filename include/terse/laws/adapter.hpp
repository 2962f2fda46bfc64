// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/codec.hpp"
#include "terse/core/type_name.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/executor/host.hpp"
#include "terse/laws/feedback_trial.hpp"
#include "terse/laws/guarded_selection.hpp"
#include "terse/laws/subject.hpp"

namespace terse::laws {

/// The default feedback in checks of a compressor: Residual if the error stays bounded, otherwise none.
template <class C>
using DefaultFeedback = std::conditional_t<Traits<C>::tracks, Residual, Unchecked<NoErrorFeedback>>;

namespace detail {

template <class C, class F>
class RankOf final : public Rank {
  using E = executor::host;

 public:
  RankOf(const C& compressor, const F& feedback, const Arena& arena)
      : compressor_(compressor),
        feedback_(feedback),
        layout_(arena.layout),
        words_(arena.mask_words),
        plan_(compressor, layout_, layout_.range(), arena.parts, false) {
    if (arena.parts == 1)
      portions_.push_back(&plan_.whole);
    else
      for (const Portion& chunk : plan_.chunks) portions_.push_back(&chunk);
    reset();
  }

  void reset() override {
    codec_.emplace(E{}, compressor_, feedback_, plan_.whole);
    codec_->start(1);
  }

  Sent encode(const Values& message, const Moment& moment, std::byte fill) override {
    const terse::Message from{FromArena{message.data()}, FromArena{message.data()}};
    const EncodeContext context{moment.step,
                                Draw::local(moment.seed, moment.rank, moment.step, Purpose::quantization),
                                shared(moment)};
    codec_->measure(plan_.whole, mask(), EmptyInbox{}, from);
    Sent packets;
    for (const Portion* portion : portions_) {
      Packet& packet = packets.emplace_back(portion->bytes, fill, layout_.size());
      packet.bytes = codec_->encode(*portion, mask(), EmptyInbox{}, from, context, true, packet.data());
    }
    return packets;
  }

  void decode(const std::vector<std::vector<const std::byte*>>& packets, const std::vector<float>& weights,
              const Moment& moment, Values& sum) override {
    sum.assign(at(layout_.size()), 0);
    for (std::size_t p = 0; p < portions_.size(); ++p) {
      Inbox<C> inbox(static_cast<int>(packets.size()));
      for (std::size_t r = 0; r < packets.size(); ++r)
        inbox.add(compressor_, *portions_[p], packets[r][p], shared(moment), weights[r]);
      if constexpr (!C::lossless)
        for_each(E{}, portions_[p]->compressed, mask(), codec_->arrived(portions_[p]->compressed, inbox),
                 IntoArena{sum.data()});
      for_each(E{}, portions_[p]->dense, NoMask{}, inbox.dense(), IntoArena{sum.data()});
    }
  }

  Values compensated(const Values& message) override {
    Values y(at(layout_.size()));
    if constexpr (!C::lossless)
      for_each(E{}, plan_.whole.compressed, NoMask{}, NoPackets{},
               Ask<decltype(codec_->feedback())>{codec_->feedback(), message.data(), y.data()});
    return y;
  }
  bool take_bad() override { return codec_->take_bad(); }

  int parts() const override { return static_cast<int>(portions_.size()); }
  index_t section_at(int part) const override { return portion(part).section_at; }
  index_t section_most(int part) const override {
    return C::lossless ? 0 : compressor_.wire_bytes(portion(part).compressed);
  }
  index_t packet_most(int part) const override { return portion(part).bytes; }
  const char* fault(int part, const std::byte* section, index_t bytes) const override {
    if constexpr (C::lossless)
      return nullptr;
    else
      return compressor_.fault(portion(part).compressed, section, bytes);
  }

 private:
  static Draw shared(const Moment& moment) {
    return Draw::shared(moment.seed, moment.step, Purpose::selection);
  }
  HostMask mask() const { return {words_.empty() ? nullptr : words_.data()}; }
  const Portion& portion(int part) const { return *portions_[static_cast<std::size_t>(part)]; }

  C compressor_;
  F feedback_;
  Layout layout_;
  std::vector<std::uint64_t> words_;
  Plan plan_;
  std::vector<const Portion*> portions_;
  std::optional<Codec<C, F, E>> codec_;
};

/// Returns the sizes of the units into which these segments are divided.
template <class C>
std::vector<index_t> unit_sizes(const std::vector<index_t>& counts) {
  Units units;
  if constexpr (requires { C::units(); }) units = C::units();
  std::vector<index_t> result;
  index_t all = 0;
  for (const index_t count : counts) {
    all += count;
    if (count > 0) result.push_back(units.size == 0 ? count : std::min(count, units.size));
    if (units.size != 0 && count > units.size && count % units.size != 0)
      result.push_back(count % units.size);
  }
  if (units.whole) result.assign(all > 0 ? 1 : 0, all);
  return result;
}

template <class C>
class SubjectOf {
  template <class Any>
  static constexpr bool has_delta = requires(const Any& any) {
    any.delta(index_t{1});
  };
  template <class Any>
  static constexpr bool has_omega = requires(const Any& any) {
    any.omega(index_t{1});
  };

 public:
  /// Returns the claims of the compressor, or of its quantizer.
  static Claims claims(const C& c) {
    Claims claims;
    claims.name = type_name<C>();
    claims.unbiased = C::unbiased;
    claims.contractive = Traits<C>::contractive;
    claims.tracks = Traits<C>::tracks;
    claims.variable = Traits<C>::variable;
    claims.decodes_sums = Traits<C>::decodes_sums;
    add(claims, c);
    if constexpr (requires { typename C::Quantizer; }) add(claims, typename C::Quantizer{});
    claims.zero_to_zero |= Traits<C>::contractive || (C::unbiased && claims.omega);
    return claims;
  }

 private:
  template <class Any>
  static void add(Claims& claims, const Any& any) {
    if constexpr (requires { Any::stochastic; }) claims.stochastic = Any::stochastic;
    if constexpr (requires { Any::represents_zero; }) claims.zero_to_zero |= Any::represents_zero;
    if constexpr (has_delta<Any>)
      claims.delta = [any](const std::vector<index_t>& counts) {
        double least = 1;
        for (const index_t n : unit_sizes<C>(counts))
          least = std::min(least, static_cast<double>(any.delta(n)));
        return least;
      };
    if constexpr (has_omega<Any>)
      claims.omega = [any](const std::vector<index_t>& counts) {
        double most = 0;
        for (const index_t n : unit_sizes<C>(counts))
          most = std::max(most, static_cast<double>(any.omega(n)));
        return most;
      };
  }
};

template <class C, class F>
class Pair final : public Subject {
 public:
  Pair(const C& compressor, const F& feedback)
      : compressor_(compressor), feedback_(feedback), claims_(SubjectOf<C>::claims(compressor)) {
    if constexpr (requires { compressor.check(); }) compressor.check();
    claims_.selects = !std::is_same_v<GuardedC, C>;
    claims_.accumulates = terse::detail::accumulates<F>();
    claims_.exact = terse::detail::held_by<F>() == 0;
    if constexpr (terse::detail::accumulates<F>())
      if (const Shares kept = kept_by(watch<F, NearestFourBits>(feedback)); !kept.all()) {
        claims_.fresh = static_cast<float>(kept.fresh);
        claims_.old = std::abs(kept.old) < 1e-3 ? 0 : static_cast<float>(kept.old);
      }
  }
  const Claims& claims() const override { return claims_; }
  Arena arena(const Example& example) const override {
    Arena arena(example);
    const Plan plan(compressor_, arena.layout, arena.layout.range(), 1, false);
    std::vector<std::uint8_t> taken(arena.layout.segments().size(), 0);
    for (const Piece& piece : plan.whole.compressed.pieces()) taken[at(piece.segment)] = 1;
    for (std::size_t e = 0, s = 0, left = 0; e < arena.place.size(); ++e, --left) {
      for (; left == 0; ++s) left = at(arena.layout.segments()[s].count);
      arena.compressed[e] = taken[s - 1];
    }
    return arena;
  }
  std::unique_ptr<Rank> rank(const Arena& arena) const override {
    return std::make_unique<RankOf<GuardedC, F>>(guarded(compressor_), feedback_, arena);
  }

 private:
  using GuardedC = std::remove_cvref_t<decltype(guarded(std::declval<const C&>()))>;

  C compressor_;
  F feedback_;
  Claims claims_;
};

}  // namespace detail

}  // namespace terse::laws

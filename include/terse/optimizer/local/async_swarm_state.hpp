// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "terse/optimizer/local/inner.hpp"
#include "terse/optimizer/local/swarm_functors.hpp"
#include "terse/transport/mailbox.hpp"

namespace terse::detail {

/// Parameters as packets in a mailbox: 32 bytes of header, the compressor's section, and dense pieces. The header's
/// step is the publisher's.
template <Compressor C, Executor E>
class PublishedParameters {
 public:
  PublishedParameters(E executor, Channel& transport, const Layout& layout, const C& compressor)
      : executor_(executor),
        rank_(transport.rank()),
        size_(transport.size()),
        layout_hash_(layout_hash(layout)),
        compressor_(compressor),
        whole_(Plan(compressor, layout, layout.range(), 1, false).whole),
        codec_(executor, Dense{}, NoErrorFeedback{}, Plan(Dense{}, layout, layout.range(), 1, false).whole),
        inbox_(1),
        own_(whole_.bytes),
        read_(whole_.bytes),
        mailbox_(transport.mailbox(whole_.bytes)) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Publishes parameters. If they are not finite, throws non_finite_error and publishes nothing.
  template <Number P>
  void publish(const StepContext& context, ParameterRef<P> parameters) {
    const auto message = one_vector(ReadParameters<P>{parameters});
    const EncodeContext encoding{context.step,
                                 Draw::local(context.seed, rank_, context.step, Purpose::quantization),
                                 Draw::shared(context.seed, context.step, Purpose::selection)};
    if constexpr (!C::lossless)
      compressor_.encode(executor_, whole_.compressed, message.compressed, encoding,
                         own_.data() + whole_.section_at, *codec_.bad());
    codec_.encode(whole_, {}, EmptyInbox{}, message, encoding, true, own_.data());
    if (codec_.take_bad()) throw_non_finite(flags_of(rank_), rank_, context.step);
    PacketHeader header;
    header.step = context.step;
    header.length = length();
    header.check = check_of(rank_);
    std::memcpy(own_.data(), &header, sizeof header);
    mailbox_->publish({own_.data(), length()});
    if (!C::lossless && size_ > 1 && context.compressed != nullptr) *context.compressed = true;
  }

  /// Averages: x = (x + y) / 2, with y the last published parameters of rank `peer`. Does nothing before its first
  /// ones. Throws wire_error and leaves x unchanged if the packet can't be decoded with x as the key, or is damaged.
  template <Number P>
  void average_with(int peer, const StepContext& context, ParameterRef<P> parameters) {
    if (mailbox_->fetch(peer, {read_.data(), length()}) == 0) return;
    PacketHeader header;
    std::memcpy(&header, read_.data(), sizeof header);
    // Of any step.
    read_header(read_.data(), {length(), length(), header.step, check_of(peer)}, peer, rank_);
    std::uint64_t damage = no_damage;
    inbox_.clear();
    inbox_.watch(&damage);
    inbox_.add(Dense{}, whole_, read_.data(), Draw::shared(0, 0, Purpose::selection));
    // Reads the packet before any parameter changes.
    for_each(executor_, whole_.dense, NoMask{}, inbox_.dense(), IgnoreSum{});
    if (damage != no_damage)
      throw_damaged(packet_from(peer, -1, " (as published)"), "it has values that are not finite", rank_,
                    context.step);
    const AverageWith<P> average{parameters};
    if constexpr (!C::lossless) {
      const std::byte* const section = read_.data() + whole_.section_at;
      const ReadParameters<P> key{parameters};
      if (!compressor_.verify(executor_, whole_.compressed, section, key))
        throw wire_error("the packet that rank " + std::to_string(peer) +
                             " has published can't be decoded with this rank's own parameters: the two "
                             "differ by more than the compressor's bound, or are not finite. Raise the bound "
                             "(Lattice's step), synchronize more often, or lower the learning rate",
                         rank_, static_cast<std::int64_t>(context.step));
      (void)compressor_.decode(executor_, whole_.compressed, section, key, average);
    }
    for_each(executor_, whole_.dense, NoMask{}, inbox_.dense(), average);
  }

 private:
  std::uint64_t length() const { return static_cast<std::uint64_t>(whole_.bytes); }
  /// Returns the check value in the header of a packet from `publisher`.
  std::uint64_t check_of(int publisher) const {
    return mix_hash(layout_hash_, static_cast<std::uint64_t>(publisher));
  }

  E executor_;
  int rank_, size_;
  std::uint64_t layout_hash_;
  C compressor_;
  Portion whole_;
  Codec<Dense, NoErrorFeedback, E> codec_;
  Inbox<Dense> inbox_;
  buffer<std::byte> own_, read_;
  std::unique_ptr<AnyMailbox> mailbox_;
};

/// The mutable state of AsyncSwarmSgd.
template <class Inner, Compressor C, Executor E>
struct AsyncSwarmState {
  static_assert(std::is_same_v<typename E::memory, memory::host>,
                "terse: asynchronous swarms are for the host, where their mailboxes are");

  Channel own;  // a world of this rank alone
  typename Composed<Inner>::template State<E> inner;
  PublishedParameters<C, E> published;
  bool begun = false;  // true once the initial parameters are in the mailbox

  template <class Recipe>
  AsyncSwarmState(const Recipe& recipe, E executor, Channel& transport, const Layout& layout,
                  const Options& options)
      : own(transport.split(transport.rank(), 0)),
        inner(composed(recipe.inner), executor, own, layout, inner_options(options, true)),
        published(executor, transport, layout, recipe.compressor) {
    if (options.check_payload)
      throw usage_error("check_payload is for packets that travel; those of this method lie in mailboxes",
                        transport.rank());
  }

  bool full_precision() const { return inner.full_precision(); }
  MaskedElements& masked_elements() requires Freezes<typename Composed<Inner>::template State<E>> {
    return inner.masked_elements();
  }
  bool clips_mean() const { return detail::clips_mean(inner); }
  /// Returns 0 bytes: a rank sends nothing, since others read its published parameters.
  static StepBytes bytes_per_step() { return {}; }
  template <class Visit>
  void walk_buffers(Visit&& visit) requires requires {
    inner.walk_buffers(visit);
  }
  { inner.walk_buffers(visit); }
  void drop_rounds(E executor) { detail::drop_rounds(inner, executor); }
  template <class Visit>
  void walk(Visit&& visit) {
    walk_inner(inner, visit);
  }
};

}  // namespace terse::detail

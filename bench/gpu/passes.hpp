// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "functors.hpp"
#include "terse/codec.hpp"
#include "terse/compressor/cast.hpp"
#include "terse/compressor/min_max.hpp"
#include "terse/compressor/qsgd.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/compressor/sign.hpp"
#include "terse/compressor/ternary.hpp"
#include "terse/compressor/tiled.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/compressor/two_magnitudes.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/device.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/error_feedback/residual.hpp"

// The local passes of a step and of compressors on any executor, as an exchange runs them, without the messages
// between.

namespace terse::bench::gpu {

using Blocks = ScaledSign<RootMeanSquare, PerBlock<4096>>;

inline EncodeContext context_of(std::uint64_t step) {
  return {step, Draw::local(1, 0, step, Purpose::quantization), Draw::shared(1, step, Purpose::selection)};
}

/// A mask under which all elements take part, or all but every `skipped`-th.
template <Executor E>
class BitMask {
 public:
  explicit BitMask(const Layout& layout, index_t skipped = 0) : words_(layout.size() / alignment) {
    std::vector<std::uint64_t> words(static_cast<std::size_t>(words_.size()), ~std::uint64_t{0});
    for (index_t i = 0; skipped > 0 && i < layout.size(); i += skipped)
      words[static_cast<std::size_t>(i / alignment)] &= ~(std::uint64_t{1} << i % alignment);
    upload(view<const std::uint64_t>(words), words_.all());
  }
  operator Mask<typename E::memory>() const { return {words_.data()}; }  // NOLINT: implicit

 private:
  buffer<std::uint64_t, typename E::memory> words_;
};

/// A compressed step of 1-bit Adam: a rank's own message, and the update from a packet. Takes all its memory when it is
/// made. Those on other executors of the same memory may share a rank.
template <Compressor C, Executor E, Executor Owner = E>
class OneBitPasses {
  using Elements = Mask<typename E::memory>;

 public:
  OneBitPasses(E ex, Rank<Owner>& rank)
      : ex_(ex),
        rank_(&rank),
        plan_(C{}, rank.layout, rank.layout.range(), 1, false),
        codec_(ex, C{}, Residual{}, plan_.whole),
        packet_(plan_.whole.bytes),
        inbox_(1) {
    inbox_.add(C{}, plan_.whole, packet_.data(), context_of(1).shared);
  }

  void measure(Elements mask = {}) { codec_.measure(plan_.whole, mask, EmptyInbox{}, rank_->message()); }
  void encode(Elements mask = {}) {
    codec_.encode(plan_.whole, mask, EmptyInbox{}, rank_->message(), context_of(1), true, packet_.data());
  }
  void update(Elements mask = {}) {
    using Update = detail::Deliver<decltype(rank_->frozen_update()), detail::AsItIs>;
    const auto take = envelope_.gated(Update{rank_->frozen_update(), 1, {}});
    if constexpr (GridExecutor<E>) {
      // As the packets of all chunks are, one.
      const detail::PlacedRange whole{.range = &plan_.whole.compressed};
      for_each(ex_, detail::PlacedRanges(&whole, 1), mask,
               detail::OneEach<typename C::Code>{inbox_.compressed()}, take);
    } else {
      for_each(ex_, plan_.whole.compressed, mask, inbox_.compressed(), take);
    }
  }
  void all(Elements mask = {}) {
    measure(mask);
    encode(mask);
    update(mask);
  }

  view<const std::byte, typename E::memory> packet() const { return packet_.all(); }
  template <class Visit>
  void walk(Visit&& visit) {
    codec_.walk(visit);
  }

 private:
  E ex_;
  Rank<Owner>* rank_;
  Plan plan_;
  Codec<C, Residual, E> codec_;
  buffer<std::byte, typename E::memory> packet_;
  Inbox<C> inbox_;
  Envelope<E> envelope_;
};

/// The owner's passes over a chunk, fed by `ranks` packets.
template <Compressor C, Executor E>
class OwnerPasses {
 public:
  OwnerPasses(E ex, index_t chunk, int ranks)
      : layout_(Layout::flat(chunk)),
        plan_(C{}, layout_, layout_.range(), 1, false),
        codec_(ex, C{}, Residual{}, plan_.whole),
        out_(plan_.whole.bytes),
        inbox_(ranks) {
    Floats<E> samples(layout_.size());
    Codec<C, Unchecked<NoErrorFeedback>, E> codec(ex, C{}, Unchecked<NoErrorFeedback>{}, plan_.whole);
    for (int k = 0; k < ranks; ++k) {
      const Message message{Samples{samples.data()}, Samples{samples.data()}};
      for_each(ex, layout_.range(), Noise{samples.data(), Draw::local(2, k, 0, Purpose::user)});
      auto& packet = in_.emplace_back(plan_.whole.bytes);
      codec.measure(plan_.whole, {}, EmptyInbox{}, message);
      codec.encode(plan_.whole, {}, EmptyInbox{}, message, context_of(1), true, packet.data());
    }
    for (const auto& packet : in_) inbox_.add(C{}, plan_.whole, packet.data(), context_of(1).shared);
    wait_for(ex);
  }

  void serve() {
    const MeanOf mean{1.0F / static_cast<float>(in_.size())};
    codec_.measure(plan_.whole, {}, inbox_, Message{mean, mean});
    codec_.encode(plan_.whole, {}, inbox_, Message{mean, mean}, context_of(1), false, out_.data());
  }

  view<const std::byte, typename E::memory> packet() const { return out_.all(); }
  template <class Visit>
  void walk(Visit&& visit) {
    codec_.walk(visit);
  }

 private:
  static void wait_for(E ex) {
    if constexpr (requires { ex.synchronize(); }) ex.synchronize();
  }

  Layout layout_;
  Plan plan_;
  Codec<C, Residual, E> codec_;
  std::vector<buffer<std::byte, typename E::memory>> in_;
  buffer<std::byte, typename E::memory> out_;
  Inbox<C> inbox_;
};

/// A compressor by itself: `samples` into a packet, and x -= rate * what it says.
template <Compressor C, ErrorFeedback F, Executor E>
class CompressorPasses {
 public:
  CompressorPasses(E ex, const Layout& layout, const float* samples, float* x)
      : ex_(ex),
        samples_(samples),
        x_(x),
        plan_(C{}, layout, layout.range(), 1, false),
        codec_(ex, C{}, F{}, plan_.whole),
        packet_(plan_.whole.bytes),
        inbox_(1) {
    codec_.start(1);
    inbox_.add(C{}, plan_.whole, packet_.data(), context_of(1).shared);
  }

  void send() {
    const Message message{Samples{samples_}, Samples{samples_}};
    codec_.measure(plan_.whole, {}, EmptyInbox{}, message);
    codec_.encode(plan_.whole, {}, EmptyInbox{}, message, context_of(1), true, packet_.data());
  }
  void accumulate() {
    using Update = detail::Deliver<Descend, detail::AsItIs>;
    for_each(ex_, plan_.whole.compressed, Mask<typename E::memory>{},
             codec_.arrived(plan_.whole.compressed, inbox_), Update{{x_, 1e-3F}, 1, {}});
  }

  index_t section_bytes() const { return plan_.whole.bytes - static_cast<index_t>(sizeof(PacketHeader)); }
  view<const std::byte, typename E::memory> packet() const { return packet_.all(); }
  template <class Visit>
  void walk(Visit&& visit) {
    codec_.walk(visit);
  }

 private:
  E ex_;
  const float* samples_;
  float* x_;
  Plan plan_;
  Codec<C, F, E> codec_;
  buffer<std::byte, typename E::memory> packet_;
  Inbox<C> inbox_;
};

/// visit(name, C{}) for what is measured here.
template <class Visit>
void for_each_compressor(Visit&& visit) {
  visit("Cast<bf16>", Cast<bf16>{});
  visit("Uniform<4, Stochastic, PerBlock<512>>", Uniform<4, Stochastic, Symmetric, MaxAbs, PerBlock<512>>{});
#ifndef TERSE_BENCH_FEW  // which a check that takes long to compile may ask for
  visit("Cast<fp16, MaxAbs>", Cast<fp16, MaxAbs>{});
  visit("Cast<e4m3, MaxAbs>", Cast<e4m3, MaxAbs>{});
  visit("Sign", Sign{});
  visit("ScaledSign<RootMeanSquare, PerBlock<4096>>", Blocks{});
  visit("Uniform<2>", Uniform<2>{});
  visit("Uniform<4>", Uniform<4>{});
  visit("Uniform<8>", Uniform<8>{});
  visit("Uniform<2, Stochastic>", Uniform<2, Stochastic>{});
  visit("Uniform<8, Stochastic, Symmetric>", Uniform<8, Stochastic, Symmetric>{});
  visit("MinMax<4>", MinMax<4>{});
  visit("MinMax<8>", MinMax<8>{});
  visit("Qsgd<4>", Qsgd<4>{});
  visit("Ternary<>", Ternary<>{});
#endif
}

/// The same of compressors that pick, which an error feedback goes with: of each 100 elements one.
template <class Visit>
void for_each_sparse(Visit&& visit) {
  visit("Dct<64, TopK<>>", Dct<64, TopK<>>{});
#ifndef TERSE_BENCH_FEW
  visit("Tiles<64, TopK<>>", Tiles<64, TopK<>>{});
  visit("Tiles<64, TwoMagnitudeSign>", Tiles<64, Sparse<Largest, TwoMagnitudeSign<>, PerSegment>>{});
  visit("TopK<>", TopK<>{});
  visit("TopK, TwoMagnitudeSign", Sparse<Largest, TwoMagnitudeSign<>, PerSegment>{});
  visit("RandomK", RandomK{});
#endif
}

}  // namespace terse::bench::gpu

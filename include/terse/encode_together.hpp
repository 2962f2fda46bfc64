// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "terse/codec.hpp"

namespace terse {

namespace detail {

/// The places of several portions' packets, all in one buffer, and their sizes after encoding.
struct ChunkPackets {
  explicit ChunkPackets(std::size_t count) : at(count), bytes(count), placed(count) {}
  std::vector<std::byte*> at;
  std::vector<index_t> bytes;
  std::vector<PlacedRange> placed;  ///< used by the codec
};

/// Compressors whose packets are encoded by kernels that process all packets.
template <class C, class E>
concept EncodesTogether = GridExecutor<E> &&
    (C::lossless ||
     requires(const C& compressor, const Range& range) { compressor.place(range, index_t{}, index_t{}); });

}  // namespace detail

template <Compressor C, ErrorFeedback F, Executor E>
template <class M>
void Codec<C, F, E>::encode_together(const std::vector<Portion>& chunks, Mask<typename E::memory> mask,
                                     const M& message, const EncodeContext& context,
                                     detail::ChunkPackets& packets) {
  const std::size_t count = chunks.size();
  const auto one_by_one = [&] {
    for (std::size_t c = 0; c < count; ++c)
      packets.bytes[c] = encode(chunks[c], mask, EmptyInbox{}, message, context, true, packets.at[c]);
  };
  if constexpr (detail::EncodesTogether<C, E> || detail::PicksTogetherOn<C, E>) {
    std::byte* const base = *std::min_element(packets.at.begin(), packets.at.end());
    for (std::size_t c = 0; c < count; ++c) packets.bytes[c] = chunks[c].bytes;
    if constexpr (detail::PicksTogetherOn<C, E>) {
      for (std::size_t c = 0; c < count; ++c) {
        packets.placed[c].range = &chunks[c].compressed;
        packets.placed[c].going = packets.at[c] - base + chunks[c].section_at;
      }
      compressor_.encode_together(
          executor_, workspace_, packets.placed, mask, NoPackets{}, compensate(message), reporting(message),
          context, base, bad_.data(), [&](int c, index_t bytes) {
            const auto place = static_cast<std::size_t>(c);
            packets.bytes[place] += bytes - compressor_.wire_bytes(chunks[place].compressed);
          });
    } else if constexpr (!C::lossless) {
      for (std::size_t c = 0; c < count; ++c)
        packets.placed[c] = compressor_.place(chunks[c].compressed, chunks[c].first_unit,
                                              packets.at[c] - base + chunks[c].section_at);
      if constexpr (is_measured())
        compressor_.encode_together(executor_, workspace_, packets.placed, mask, reporting(message), context,
                                    base);
      else if (!compressor_.encode_at_once(executor_, packets.placed, mask, NoPackets{}, compensate(message),
                                           reporting(message), context, base, bad_.data()))
        return one_by_one();
    }
    if constexpr (!C::lossless && detail::StoresErrors<FeedbackState, E>)
      for (const Portion& chunk : chunks) state().store(executor_, chunk.compressed);
    for (std::size_t c = 0; c < count; ++c) {
      if (has_note(chunks[c])) encode_dense(chunks[c], EmptyInbox{}, message, packets.at[c]);
      packets.placed[c] = {&chunks[c].dense, packets.at[c] - base + chunks[c].dense_at};
    }
    if (!has_note(chunks.front())) store_dense(packets.placed, EmptyInbox{}, message, base);
  } else {
    one_by_one();
  }
}

}  // namespace terse

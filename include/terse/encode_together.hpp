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

}  // namespace detail

template <Compressor C, ErrorFeedback F, Executor E>
template <class M>
void Codec<C, F, E>::encode_together(const std::vector<Portion>& chunks, Mask<typename E::memory> mask,
                                     const M& message, const EncodeContext& context,
                                     detail::ChunkPackets& packets) {
  const std::size_t count = chunks.size();
  if constexpr (C::lossless ? GridExecutor<E> : detail::EncodesTogether<C, E>) {
    std::byte* const base = *std::min_element(packets.at.begin(), packets.at.end());
    for (std::size_t c = 0; c < count; ++c) packets.bytes[c] = chunks[c].bytes;
    if constexpr (!C::lossless) {
      for (std::size_t c = 0; c < count; ++c)
        packets.placed[c] = compressor_.place(chunks[c].compressed, chunks[c].first_unit,
                                              packets.at[c] - base + chunks[c].section_at);
      encode_placed(packets.placed, mask, EmptyInbox{}, message, context, base, [&](int c, index_t bytes) {
        const auto place = static_cast<std::size_t>(c);
        packets.bytes[place] += bytes - compressor_.wire_bytes(chunks[place].compressed);
      });
    }
    if constexpr (!C::lossless && detail::StoresErrors<FeedbackState, E>)
      for (const Portion& chunk : chunks) state().store(executor_, chunk.compressed);
    for (std::size_t c = 0; c < count; ++c) {
      if (has_note(chunks[c])) encode_dense(chunks[c], EmptyInbox{}, message, packets.at[c]);
      packets.placed[c] = {&chunks[c].dense, packets.at[c] - base + chunks[c].dense_at};
    }
    if (!has_note(chunks.front())) store_dense(packets.placed, EmptyInbox{}, message, base);
  } else {
    for (std::size_t c = 0; c < count; ++c)
      packets.bytes[c] = encode(chunks[c], mask, EmptyInbox{}, message, context, true, packets.at[c]);
  }
}

}  // namespace terse

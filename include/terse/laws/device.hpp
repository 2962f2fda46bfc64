// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "terse/device.hpp"
#include "terse/device/emulated.hpp"
#include "terse/laws/adapter.hpp"
#include "terse/laws/example.hpp"
#include "terse/laws/report.hpp"

// Checks that a compressor gives the same bits on a device as on the host.
//
//     #include <terse/laws/device.hpp>
//
//     const terse::laws::Report report = terse::laws::check_device<MyCompressor>();

namespace terse::laws {

namespace detail {

TERSE_NUMERICS_BEGIN

/// A message in an arena, and (`IntoDevice`) an arena that receives a sum, on any executor.
struct FromDevice {
  const float* x;
  TERSE_HD float operator()(const Piece&, index_t i) const { return x[i]; }
};
struct IntoDevice {
  float* x;
  TERSE_HD void operator()(const Piece&, index_t i, bool, float sum) const { x[i] = sum; }
};

TERSE_NUMERICS_END

/// Returns all results of a rank on E: encodes two messages one after the other, then decodes both packets together.
template <class C, class F, Executor E>
std::vector<std::vector<std::byte>> traces(const C& compressor, const F& feedback, const Layout& layout,
                                           const std::vector<std::uint64_t>& mask,
                                           const std::vector<Values>& messages) {
  using Space = typename E::memory;
  std::vector<std::vector<std::byte>> result;
  const auto keep = [&](const std::byte* bytes, index_t count) {
    download(view<const std::byte, Space>(const_cast<std::byte*>(bytes), count),
             view<std::byte>(result.emplace_back(at(count))));
  };
  const Plan plan(compressor, layout, layout.range(), 2, false);
  const index_t second = aligned(plan.chunks[0].bytes);
  Codec<C, F, E> codec(E{}, compressor, feedback, plan.whole);
  buffer<std::uint64_t, Space> words(static_cast<index_t>(mask.size()));
  upload(view<const std::uint64_t>(mask), words.all());
  const Mask<Space> masked{mask.empty() ? nullptr : words.data()};
  buffer<float, Space> message(layout.size()), sum(layout.size());
  std::vector<buffer<std::byte, Space>> packets;  // both packets of each message
  terse::detail::ChunkPackets places(2);
  const Draw shared = Draw::shared(1, 1, Purpose::selection);
  for (std::size_t m = 0; m < messages.size(); ++m) {
    upload(view<const float>(messages[m]), message.all());
    const terse::Message from{FromDevice{message.data()}, FromDevice{message.data()}};
    const EncodeContext context{m + 1, Draw::local(1, 3, m + 1, Purpose::quantization), shared};
    codec.start(1);
    codec.measure(plan.whole, masked, EmptyInbox{}, from);
    places.at[0] = packets.emplace_back(second + plan.chunks[1].bytes, uninitialized).data();
    places.at[1] = places.at[0] + second;
    if (m % 2 == 0)
      codec.encode_together(plan.chunks, masked, from, context, places);
    else
      for (std::size_t p = 0; p < 2; ++p)
        codec.encode(plan.chunks[p], masked, EmptyInbox{}, from, context, true, places.at[p]);
    // Skips the header, which an envelope writes.
    for (std::size_t p = 0; p < 2; ++p)
      keep(places.at[p] + sizeof(PacketHeader),
           plan.chunks[p].bytes - static_cast<index_t>(sizeof(PacketHeader)));
    keep(reinterpret_cast<const std::byte*>(codec.bad()), 4);
    const auto keep_state = [&]<class T, class S>(const std::string&, view<T, S> part, index_t) {
      if constexpr (std::is_same_v<S, Space>)
        keep(reinterpret_cast<const std::byte*>(part.data()), part.size() * static_cast<index_t>(sizeof(T)));
    };
    codec.walk([&](const std::string& name, auto&&... rest) {
      if constexpr (sizeof...(rest) == 2) keep_state(name, rest...);
    });
  }
  for (std::size_t p = 0; p < 2; ++p) {
    Inbox<C> inbox(static_cast<int>(messages.size()));
    for (const auto& both : packets)
      inbox.add(compressor, plan.chunks[p], both.data() + (p == 0 ? 0 : second), shared, 0.75F);
    for_each(E{}, plan.chunks[p].compressed, masked, codec.arrived(plan.chunks[p].compressed, inbox),
             IntoDevice{sum.data()});
    for_each(E{}, plan.chunks[p].dense, Mask<Space>{}, inbox.dense(), IntoDevice{sum.data()});
  }
  keep(reinterpret_cast<const std::byte*>(sum.data()), layout.size() * 4);
  return result;
}

}  // namespace detail

/// Compares packets, flags, stored errors and decoded sums on E with the host's, byte by byte. Messages have many
/// magnitudes, zeros of both signs, denormals, constants, and non-finite values. Segments end around word and tile edges;
/// runs are with and without a mask. E is `executor::emulated`, or `executor::cuda` in a .cu file.
template <class C, class F = DefaultFeedback<C>, GridExecutor E = executor::emulated>
Report check_device(const C& compressor = {}, const F& feedback = {}) {
  static_assert(check_compressor<C>() && check_error_feedback<F>());
  Report report{.compressor = type_name<C>(), .passed = {}, .not_applicable = {}, .failures = {}};
  const std::string law = "the host's bits";
  for (const std::vector<index_t>& counts :
       std::vector<std::vector<index_t>>{{1}, {65}, {130, 7, 64}, {4097, 200}}) {
    Layout layout;
    for (const index_t count : counts)
      layout.add({std::to_string(layout.segments().size()), {count}, 1, 1, count != 7});
    for (int kind = 0; kind < 5; ++kind) {
      std::vector<Values> messages;
      for (std::uint64_t m = 0; m < 2; ++m) {
        Values& message = messages.emplace_back(at(layout.size()));
        const Draw draw = Draw::shared(7, m, Purpose::user);
        for (std::size_t i = 0; i < message.size(); ++i) {
          const std::uint64_t bits = draw.bits(i);
          const float unit = static_cast<float>(static_cast<std::int32_t>(bits >> 32)) * 0x1p-31F;
          constexpr float odd[] = {0.0F, -0.0F, 1e-40F, 1e30F, -1e-30F};
          message[i] = kind == 0   ? unit
                       : kind == 1 ? std::ldexp(unit, static_cast<int>(bits % 40) - 20)
                       : kind == 2 ? -2.5F
                                   : odd[bits % std::size(odd)] * unit;
          if (kind == 4 && bits % 7 == 0)
            message[i] = bits % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                       : std::numeric_limits<float>::infinity();
        }
      }
      for (const bool masked : {false, true}) {
        std::vector<std::uint64_t> mask;
        if (masked)
          for (index_t w = 0; w < layout.size() / alignment; ++w)
            mask.push_back(Draw::shared(8, 0, Purpose::user).bits(static_cast<std::uint64_t>(w)));
        const auto host = detail::traces<C, F, executor::host>(compressor, feedback, layout, mask, messages);
        const auto device = detail::traces<C, F, E>(compressor, feedback, layout, mask, messages);
        for (std::size_t k = 0; k < host.size(); ++k)
          if (host[k] != device[k]) {
            report.failures.push_back({law, say("%lld elements first of %zu segments, message kind %d%s: "
                                                "part %zu of what a rank leaves differs",
                                                static_cast<long long>(counts[0]), counts.size(), kind,
                                                masked ? ", masked" : "", k)});
            return report;
          }
      }
    }
  }
  report.passed.push_back(law);
  return report;
}

}  // namespace terse::laws

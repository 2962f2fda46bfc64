// SPDX-License-Identifier: Apache-2.0

// A libFuzzer target: packets from a peer who may send anything. Bytes choose a compressor, a layout and a packet; what
// read_header and `fault` let through must decode to finite numbers, and serve as a second stage's input, without one
// byte read or written out of place. tests/fuzz/run builds and runs it.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "fuzz/input.hpp"
#include "terse/codec.hpp"
#include "terse/compressor/cast.hpp"
#include "terse/compressor/chain.hpp"
#include "terse/compressor/min_max.hpp"
#include "terse/compressor/natural.hpp"
#include "terse/compressor/qsgd.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/compressor/sign.hpp"
#include "terse/compressor/ternary.hpp"
#include "terse/compressor/threshold.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/compressor/two_magnitudes.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/core/packet.hpp"
#include "terse/core/type_name.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/executor/host.hpp"

namespace {

using namespace terse;  // NOLINT: a test of the library's names

constexpr std::uint64_t step = 7, check = 0x1234;

struct FromSeed {
  std::uint64_t seed;
  float operator()(const Piece&, index_t i) const {
    const std::uint64_t bits = Draw::shared(seed, 1, Purpose::user).bits(static_cast<std::uint64_t>(i));
    return static_cast<float>(static_cast<std::int64_t>(bits)) * 0x1p-60F;
  }
};
struct Mean {
  float operator()(const Piece&, index_t, float sum) const { return sum / 2; }
  float operator()(const Piece&, index_t) const { return 0; }
};
struct Keep {
  float* x;
  void operator()(const Piece&, index_t i, bool, float sum) const { x[i] = sum; }
};

template <class C>
[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "%s: %s\n", type_name<C>().c_str(), what);
  std::abort();
}

/// What is wrong with a packet, as an exchange would say it.
template <class C>
bool accepts(const C& compressor, const Portion& portion, const std::byte* packet) {
  const auto most = static_cast<std::uint64_t>(portion.bytes);
  const auto least = portion.variable ? static_cast<std::uint64_t>(portion.section_at) : most;
  try {
    const PacketHeader header = terse::detail::read_header(packet, {least, most, step, check}, 1, 0);
    const index_t section = portion.variable ? static_cast<index_t>(header.length) - portion.section_at
                                             : portion.dense_at - portion.section_at;
    return compressor.fault(portion.compressed, packet + portion.section_at, section) == nullptr;
  } catch (const wire_error&) {
    return false;
  }
}

template <class C>
void decode(const C& compressor, const Layout& layout, const Portion& portion, const std::byte* packet,
            Draw shared) {
  std::vector<float> x(static_cast<std::size_t>(layout.size()));
  Inbox<C> inbox(1);
  inbox.add(compressor, portion, packet, shared);
  for_each(executor::host{}, portion.compressed, HostMask{}, inbox.compressed(), Keep{x.data()});
  for (const float value : x)
    if (!std::isfinite(value)) stop<C>("an accepted packet decodes to something that is not finite");
  for_each(executor::host{}, portion.dense, HostMask{}, inbox.dense(), Keep{x.data()});
}

template <class C>
void run(const C& compressor, Input input) {
  static const std::vector<std::vector<index_t>> shapes = {{},      {0},         {1},         {65},
                                                           {64, 1}, {7, 130, 3}, {400, 0, 63}};
  const std::uint8_t mode = input.byte();
  Layout layout;
  index_t number = 0;
  for (const index_t count : shapes[input.byte() % shapes.size()]) {
    Segment segment;
    segment.name = std::to_string(number);
    segment.shape = {count};
    segment.compress = !(mode >> 4 & 1) || number != 1;
    layout.add(segment);
    ++number;
  }
  const Plan plan(compressor, layout, layout.range(), 3, mode >> 5 & 1);
  const Portion& portion = (mode & 3) == 0 ? plan.whole : plan.chunks[(mode & 3) - 1];
  const Draw local = Draw::local(3, 1, step, Purpose::quantization);
  const EncodeContext context{step, local, Draw::shared(3, step, Purpose::selection)};
  using Coding = Codec<C, Unchecked<NoErrorFeedback>, executor::host>;
  Coding codec(executor::host{}, compressor, {}, portion);

  std::vector<std::byte> packet(static_cast<std::size_t>(portion.bytes));
  index_t bytes = portion.bytes;
  if (mode >> 2 & 1) {
    // A packet as it should be, with some bytes changed.
    const terse::Message message{FromSeed{input.byte()}, FromSeed{input.byte()}};
    codec.measure(portion, HostMask{}, EmptyInbox{}, message);
    bytes = codec.encode(portion, HostMask{}, EmptyInbox{}, message, context, false, packet.data());
    if (portion.variable) bytes = std::clamp<index_t>(bytes + input.byte() % 16 - 8, 32, portion.bytes);
    while (input.size >= 3 && bytes > 32) {
      const std::size_t place = input.byte() | static_cast<std::size_t>(input.byte()) << 8;
      packet[32 + place % static_cast<std::size_t>(bytes - 32)] = static_cast<std::byte>(input.byte());
    }
  } else {
    if (portion.variable)
      bytes = std::clamp<index_t>(static_cast<index_t>(input.size) + 32, 32, portion.bytes);
    if (input.size > 0 && bytes > 32)
      std::memcpy(packet.data() + 32, input.data, std::min(input.size, static_cast<std::size_t>(bytes - 32)));
  }
  PacketHeader header;
  header.step = step;
  header.check = check;
  header.length = static_cast<std::uint64_t>(bytes);
  if (mode >> 3 & 1) {
    auto* raw = reinterpret_cast<std::uint8_t*>(&header);
    raw[input.byte() % sizeof header] = input.byte();
    if (header.length > static_cast<std::uint64_t>(bytes)) header.length = static_cast<std::uint64_t>(bytes);
  }
  std::memcpy(packet.data(), &header, sizeof header);
  // A block of just this size, so that every byte too many is seen.
  const std::unique_ptr<std::byte[]> exact(new std::byte[static_cast<std::size_t>(bytes)]);
  std::memcpy(exact.get(), packet.data(), static_cast<std::size_t>(bytes));
  if (!accepts(compressor, portion, exact.get())) return;
  decode(compressor, layout, portion, exact.get(), context.shared);

  if constexpr (!Traits<C>::single_stage) {
    Inbox<C> inbox(2);
    inbox.add(compressor, portion, exact.get(), context.shared);
    inbox.add(compressor, portion, exact.get(), context.shared, 0.5F);
    const terse::Message message{Mean{}, Mean{}};
    codec.measure(portion, HostMask{}, inbox, message);
    // What is too large is left out, so that the new packet is one of ours.
    std::fill(packet.begin(), packet.end(), std::byte{0});
    header.length = static_cast<std::uint64_t>(
        codec.encode(portion, HostMask{}, inbox, message, context, false, packet.data()));
    header = {.length = header.length};
    header.step = step;
    header.check = check;
    std::memcpy(packet.data(), &header, sizeof header);
    if (!accepts(compressor, portion, packet.data())) stop<C>("a second stage's own packet is refused");
    decode(compressor, layout, portion, packet.data(), context.shared);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using Blocks = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<64>>;
  using Target = void (*)(Input);
  static constexpr Target targets[] = {
      [](Input input) { run(Sign{}, input); },
      [](Input input) { run(ScaledSign<MeanAbs, PerBlock<64>>{}, input); },
      [](Input input) { run(TwoMeanSign<Whole>{}, input); },
      [](Input input) { run(Uniform<3, Stochastic, Symmetric>{}, input); },
      [](Input input) { run(Uniform<8, Nearest, Symmetric, TwoRootMeanSquares, Whole>{}, input); },
      [](Input input) { run(MinMax<5>{}, input); },
      [](Input input) { run(Qsgd<4>{}, input); },
      [](Input input) { run(Ternary<>{}, input); },
      [](Input input) { run(Natural<PerBlock<64>>{}, input); },
      [](Input input) { run(Cast<bf16>{}, input); },
      [](Input input) { run(Cast<e4m3, MaxAbs>{}, input); },
      [](Input input) { run(TopK<>{.selection = {.ratio = 0.1}}, input); },
      [](Input input) { run(TopK<Whole>{.selection = {.ratio = 0.02}}, input); },
      [](Input input) { run(Threshold<>{.selection = {.threshold = 1, .most_ratio = 0.3}}, input); },
      [](Input input) { run(WarmupTopK<>{.selection = {.ratio = 0.02, .warmup_steps = 10}}, input); },
      [](Input input) {
        run(Sparse<Largest, TwoMagnitudeSign<>, PerSegment>{.selection = {.ratio = 0.02}}, input);
      },
      [](Input input) { run(RandomK{.selection = {.ratio = 0.1}}, input); },
      [](Input input) { run(UnbiasedRandomK{.selection = {.ratio = 0.1}}, input); },
      [](Input input) {
        run(Chain<Blocks, Strata<false>, Largest>{.selection = {{.ratio = 0.5}, {.ratio = 0.3}}}, input);
      },
      [](Input input) {
        run(Chain<Blocks, Largest, AboveThreshold>{.selection = {{.ratio = 0.6},
                                                                 {.threshold = 1, .most_ratio = 1}}},
            input);
      },
      [](Input input) {
        run(Chain<Dense, Largest, Largest>{.selection = {{.ratio = 0.3}, {.ratio = 0.02}}}, input);
      },
  };
  Input input{data, size};
  const std::uint8_t chosen = input.byte();
  targets[chosen % std::size(targets)](input);
  return 0;
}

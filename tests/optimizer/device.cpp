// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#define TERSE_TEST_RECORDING terse::executor::emulated::Recording
#include <array>
#include <cstddef>

#include "device.inc"
#include "device_replay.inc"
#include "optimizer/launches.hpp"
#include "terse/optimizer/lars.hpp"

// What a device's own test leaves out, since nvcc would take minutes for it: everything else that runs there.

TEST_CASE("what nobody has written is zero, or full of ones where it is said to be read by nobody") {
  const buffer<std::uint32_t, Device::memory> state(100), scratch(100, uninitialized);
  std::vector<std::uint32_t> here(100, 1);
  download(state.all(), view<std::uint32_t>(here));
  CHECK(here == std::vector<std::uint32_t>(100, 0));
  download(scratch.all(), view<std::uint32_t>(here));
  CHECK(here == std::vector<std::uint32_t>(100, 0xFFFFFFFF));
}

TEST_CASE("full-precision recipes") {
  for (const int ranks : {1, 3}) {
    compare(Adam<>{.weight_decay = 0.01F}, some_layers(), ranks, 6);
    compare(MomentumSgd<>{}, some_layers(), ranks, 6);
    compare(Lars<>{.weight_decay = 0.1F}, some_layers(), ranks, 6);
  }
  compare(Adam<>{}, some_layers(), 2, 6, {.on_non_finite = NonFinite::skip, .clip_norm = 0.5F});
}

TEST_CASE("1-bit Adam over every topology") {
  for (const int ranks : {1, 4}) {
    compare(OneBitAdam<Sign, FrozenVariance, ScatterGather>{.preconditioner = early}, some_layers(), ranks,
            9);
    compare(OneBitAdam<Sign, FrozenVariance, Ring>{.preconditioner = early}, some_layers(), ranks, 9);
    compare(OneBitAdam<Sign, FrozenVariance, AllGather>{.preconditioner = early}, some_layers(), ranks, 9);
  }
  compare(OneBitAdam<Sign, FrozenVariance, Alone>{.preconditioner = early}, some_layers(), 2, 9);
}

TEST_CASE("1-bit Adam with scales for blocks and for the whole, and with a rule for the freeze") {
  compare(OneBitAdam<ScaledSign<RootMeanSquare, PerBlock<512>>>{.preconditioner = early}, some_layers(), 3,
          9);
  compare(OneBitAdam<ScaledSign<RootMeanSquare, Whole>>{.preconditioner = early}, some_layers(), 3, 9);
  compare(OneBitAdam<>{.preconditioner = {.freeze = VarianceRatio{.threshold = 0.5F, .horizon = 3}}},
          some_layers(), 2, 9, {.clip_norm = 1});
}

TEST_CASE("1-bit Adam of more tensors than a kernel's arguments hold, and in blocks longer than a tile") {
  Layout tensors;
  for (int k = 0; k < 300; ++k) tensors.add({"t" + std::to_string(k), {1 + k % 70}, 1, 1, k % 2 == 0});
  compare(OneBitAdam<>{.preconditioner = early}, tensors, 3, 6);
  compare(OneBitAdam<ScaledSign<RootMeanSquare, PerBlock<8192>>>{.preconditioner = early},
          Layout::flat(20000), 2, 6);
}

TEST_CASE("averaged gradients; tests/laws/laws_device.cpp has the compressors") {
  compare(
      ErrorFeedbackSgd<ScaledSign<MeanAbs>, LocalMomentumBefore>{.warmup_steps = 2,
                                                                 .error_feedback = {.follows_rate = true}},
      some_layers(), 2, 6);
  compare(SignSgd<>{}, some_layers(), 3, 5);
  compare(Ef21Sgd<ScaledSign<MeanAbs>, HeavyBall>{}, some_layers(), 3, 6);
}

TEST_CASE("a state goes from a device through a file to a device") {
  const auto folder = std::filesystem::temp_directory_path() / ("terse_device_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const Layout layout = some_layers();
  const OneBitAdam<> recipe{.preconditioner = early};
  std::vector<std::string> once(2), resumed(2), on_host(2);
  const auto file_of = [&](int rank) { return folder / std::to_string(rank); };
  const auto finish = [&](auto& optimizer, auto& x, int rank, auto upload_gradient) {
    for (std::uint64_t step = optimizer.steps() + 1; step <= 9; ++step) {
      const auto g = upload_gradient(gradient(layout, rank, step, 1));
      optimizer.step(x.all(), g.all());
    }
  };
  ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
    const int rank = transport.rank();
    ThroughHost<Threads, Device> staged(transport.split(0, rank), Device{});
    Optimizer optimizer{recipe, staged, layout, {}, Device{}};
    auto x = uploaded<Device>(start(layout));
    for (std::uint64_t step = 1; step <= 6; ++step) {
      const auto g = uploaded<Device>(gradient(layout, rank, step, 1));
      optimizer.step(x.all(), g.all());
    }
    checkpoint::save(file_of(rank), optimizer, x.all());
    finish(optimizer, x, rank, uploaded<Device>);
    once[at(rank)] = checkpoint::parameters_hash(layout, view<const float, Device::memory>(x.all()));
  });
  ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
    const int rank = transport.rank();
    ThroughHost<Threads, Device> staged(transport.split(0, rank), Device{});
    Optimizer optimizer{recipe, staged, layout, {}, Device{}};
    buffer<float, Device::memory> x(layout.size());
    checkpoint::load(file_of(rank), optimizer, x.all());
    CHECK(optimizer.steps() == 6);
    finish(optimizer, x, rank, uploaded<Device>);
    resumed[at(rank)] = checkpoint::parameters_hash(layout, view<const float, Device::memory>(x.all()));
  });
  ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
    const int rank = transport.rank();
    Optimizer optimizer{recipe, transport, layout};
    buffer<float> x(layout.size());
    checkpoint::load(file_of(rank), optimizer, x.all());
    finish(optimizer, x, rank, uploaded<executor::host>);
    on_host[at(rank)] = checkpoint::parameters_hash(layout, x.all());
  });
  std::filesystem::remove_all(folder);
  CHECK(once[0] == once[1]);
  CHECK(resumed == once);
  CHECK(on_host == once);
}

TEST_CASE("a checkpoint with other elements masked than a record has makes the record useless") {
  const auto file = std::filesystem::temp_directory_path() /
                    ("terse_record_" + std::to_string(::getpid()) + ".safetensors");
  const Layout layout = some_layers();
  ThreadGroup(1).run([&](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, 0), Device{});
    const auto run = [&](bool silent, const auto& act) {
      Optimizer optimizer{OneBitAdam<>{.preconditioner = early}, staged, layout, {}, Device{}};
      auto x = uploaded<Device>(start(layout));
      Floats values = gradient(layout, 0, 1, 1);
      if (silent) values[5] = 0;
      const auto g = uploaded<Device>(values);
      for (int step = 1; step <= 6; ++step) optimizer.step(x.all(), g.all());
      act(optimizer, x, g);
    };
    run(true, [&](auto& optimizer, auto& x, auto&) { checkpoint::save(file, optimizer, x.all()); });
    run(false, [&](auto& optimizer, auto& x, auto& g) {
      const auto record = [&] {
        TERSE_TEST_RECORDING::begin();
        optimizer.record(x.all(), g.all());
        return TERSE_TEST_RECORDING::end();
      };
      const auto before = record();
      optimizer.replay([&] { before.replay(); });
      checkpoint::load(file, optimizer, x.all());
      CHECK_THROWS_WITH_AS(optimizer.replay([&] { before.replay(); }),
                           doctest::Contains("which elements take part has changed since the record"),
                           usage_error);
      CHECK(optimizer.steps() == 6);
      const auto after = record();
      optimizer.replay([&] { after.replay(); });
      CHECK(optimizer.steps() == 7);
    });
  });
  std::filesystem::remove(file);
}

namespace {

/// A transport whose messages are in the stream's order, and wait for a rank that is gone.
class Endless : public ThroughHost<Threads, Device> {
  using Base = ThroughHost<Threads, Device>;

 public:
  Endless(Base base, const bool& gone) : Base(std::move(base)), gone_(&gone) {}
  Endless split(int color, int key) { return {Base::split(color, key), *gone_}; }
  void synchronize() const {
    if (*gone_) throw peer_error("gave up waiting", 1, 0);
  }

 private:
  const bool* gone_;
};

}  // namespace

TEST_CASE("whatever waits for the device waits for messages first, which has a deadline") {
  const auto file = std::filesystem::temp_directory_path() /
                    ("terse_endless_" + std::to_string(::getpid()) + ".safetensors");
  const Layout layout = some_layers();
  bool gone = false;
  ThreadGroup(1).run([&](Threads& transport) {
    Endless endless({transport.split(0, 0), Device{}}, gone);
    Optimizer optimizer{OneBitAdam<>{.preconditioner = early}, endless, layout, {}, Device{}};
    auto x = uploaded<Device>(start(layout));
    const buffer<std::uint8_t, Device::memory> nobody(layout.size());
    gone = true;
    CHECK_THROWS_AS(checkpoint::save(file, optimizer, x.all()), peer_error);
    CHECK_FALSE(std::filesystem::exists(file));
    CHECK_THROWS_AS(optimizer.mask(nobody.all()), peer_error);
    gone = false;
    checkpoint::save(file, optimizer, x.all());
    gone = true;
    CHECK_THROWS_AS(checkpoint::load(file, optimizer, x.all()), peer_error);
    gone = false;
    checkpoint::load(file, optimizer, x.all());
  });
  std::filesystem::remove(file);
}

TEST_CASE("what a record can't hold is refused") {
  ThreadGroup(1).run([&](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, 0), Device{});
    const Layout layout = some_layers();
    buffer<float, Device::memory> x(layout.size());
    Optimizer clipping{Adam<>{}, staged, layout, {.clip_norm = 1}, Device{}};
    CHECK_THROWS_WITH_AS(clipping.record(x.all(), x.all()), doctest::Contains("can't be recorded"),
                         usage_error);
    Optimizer following{
        ErrorFeedbackSgd<>{.error_feedback = {.follows_rate = true}}, staged, layout, {}, Device{}};
    CHECK_THROWS_WITH_AS(following.record(x.all(), x.all()), doctest::Contains("can't be recorded"),
                         usage_error);
    Optimizer above{ErrorFeedbackSgd<Threshold<>>{}, staged, layout, {}, Device{}};
    CHECK_THROWS_WITH_AS(above.record(x.all(), x.all()), doctest::Contains("waits for the number of picks"),
                         usage_error);
  });
}

TEST_CASE(
    "whether a step can be recorded is asked of every policy, within what other policies are made of, too") {
  using Block = ScaledSign<MeanAbs, PerBlock<512>>;
  // One stage of ten steps, and the ratio after them.
  const LargestWithWarmup warm{.ratio = 0.01, .warmup_steps = 10, .stages = 1};
  const RecordUse stage{1, 10}, beyond{1, 11}, behind{11, 500}, back{11, 10};
  const auto falls = [&](const auto& policy) {
    const auto can = [&](const RecordUse& use) { return detail::unrecordable(use, policy) == nullptr; };
    CHECK(can(stage));
    CHECK_FALSE(can(beyond));
    CHECK(can(behind));
    CHECK_FALSE(can(back));
  };
  const WarmupTopK<> top{.selection = warm};
  falls(top);
  falls(Unchecked<WarmupTopK<>>{top});
  falls(MeanOverSenders<WarmupTopK<>>{top});
  falls(Chain<Dense, Strata<false>, LargestWithWarmup>{.selection = {.second = warm}});
  falls(Tiles<8, WarmupTopK<>>{top});
  falls(Select<SmallerThan<100>, Otherwise<WarmupTopK<>>>{
      {SmallerThan<100>{}, Otherwise<WarmupTopK<>>{{}, top}}});
  falls(Within<WarmupTopK<>>{.compressor = top});
  using Two = Hierarchical<Within<WarmupTopK<>>, ScatterGather>;
  falls(Two{.inner = {.compressor = top}});
  falls(Hierarchical<ScatterGather, Two>{.outer = {.inner = {.compressor = top}}});
  falls(BySize<Two, ScatterGather>{.small = {.inner = {.compressor = top}}});

  const auto asked = [&](const auto& recipe, bool full_precision = false) {
    return terse::detail::composed(recipe).unrecordable(beyond, full_precision) == nullptr;
  };
  CHECK(asked(ErrorFeedbackSgd<TopK<>>{}));
  CHECK_FALSE(asked(ErrorFeedbackSgd<WarmupTopK<>>{.compressor = top}));
  CHECK(asked(ErrorFeedbackSgd<WarmupTopK<>>{.compressor = top}, true));
  CHECK_FALSE(asked(ErrorFeedbackSgd<Block, AveragedResidual<>>{}));
  CHECK(asked(ErrorFeedbackSgd<Block, AveragedResidual<>>{.error_feedback = {.clear_every = 0}}));
  CHECK_FALSE(asked(
      ErrorFeedbackSgd<Block, StoredResidual<terse::quantizer::UniformLevels<8, Nearest, Symmetric, MaxAbs>>>{
          .error_feedback = {.follows_rate = true}}));
  CHECK_FALSE(asked(ErrorFeedbackSgd<Select<Otherwise<Block, AveragedResidual<>>>>{}));
  CHECK_FALSE(asked(OneBitAdam<WarmupTopK<>>{.compressor = top}));
  CHECK(asked(ChocoSgd<>{}));
  CHECK_FALSE(asked(ChocoSgd<WarmupTopK<>>{.compressor = top}));
  // The host must know how long a packet is that a rank hands on.
  CHECK(asked(ErrorFeedbackSgd<WarmupTopK<>>{}));
  CHECK_FALSE(asked(ErrorFeedbackSgd<WarmupTopK<>, Ring>{}));
  CHECK_FALSE(asked(ErrorFeedbackSgd<WarmupTopK<>, BySize<ScatterGather, Ring>>{}));
  CHECK_FALSE(asked(ErrorFeedbackSgd<WarmupTopK<>, Hierarchical<ScatterGather, Ring>>{}));
  CHECK(asked(ErrorFeedbackSgd<TopK<>, Ring>{}));
}

TEST_CASE("16-bit parameters and gradients") {
  const Layout layout = some_layers();
  const auto narrow = [](const Floats& values) {
    std::vector<bf16> result;
    for (const float value : values) result.push_back(narrowed<bf16>(value));
    return result;
  };
  ThreadGroup(1).run([&](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, 0), Device{});
    const OneBitAdam<> recipe{.preconditioner = early};
    Optimizer here{recipe, transport, layout, {}, executor::host{}, Numbers<bf16>{}};
    Optimizer there{recipe, staged, layout, {}, Device{}, Numbers<bf16>{}};
    std::vector<bf16> x = narrow(start(layout)), found(x.size());
    buffer<bf16, Device::memory> y(layout.size()), g(layout.size());
    upload(view<const bf16>(x), y.all());
    for (std::uint64_t step = 1; step <= 8; ++step) {
      const std::vector<bf16> gradients = narrow(gradient(layout, 0, step, 1));
      upload(view<const bf16>(gradients), g.all());
      here.step(x, gradients);
      there.step(y.all(), g.all());
      download(view<const bf16, Device::memory>(y.all()), view<bf16>(found));
      REQUIRE(found == x);
    }
  });
}

namespace {

/// A number of packets with scales, on the device. Counts launches.
class Batch {
 public:
  using C = ScaledSign<RootMeanSquare, PerBlock<64>>;
  static constexpr std::uint64_t step = 4, agreement = 77;

  Batch(int packets, index_t scales)
      : packets_(packets),
        layout_(Layout::flat(64 * scales)),
        plan_(C{}, layout_, layout_.range(), 1, false),
        codec_({}, C{}, {}, plan_.whole),
        now_(1),
        place_(packets * plan_.whole.bytes) {
    const StepScalars scalars{.step = step, .agreement = agreement};
    upload(view<const StepScalars>(&scalars, 1), now_.all());
    envelope_.open({}, {step, agreement, now_.data()}, 2);
  }

  index_t bytes() const { return plan_.whole.bytes; }
  index_t scale_at(index_t scale) const { return plan_.whole.section_at + 4 * scale; }
  void note() {
    const std::uint32_t bad = 1;
    upload(view<const std::uint32_t>(&bad, 1), view<std::uint32_t, Device::memory>(codec_.bad(), 1));
    envelope_.note(Device{}, codec_);
  }
  bool noted() {
    std::uint32_t bad = 1;
    download(view<const std::uint32_t, Device::memory>(codec_.bad(), 1), view<std::uint32_t>(&bad, 1));
    return bad == 0;
  }
  /// Returns how many kernels it took.
  index_t stamp() {
    return launches([&] {
      envelope_.together(Device{}, [&] {
        for (int k = 0; k < packets_; ++k)
          envelope_.stamp({}, static_cast<std::uint64_t>(bytes()), place(k), packet(k));
      });
    });
  }
  index_t accept() {
    return launches([&] {
      envelope_.together(Device{}, [&] {
        const auto length = static_cast<std::uint64_t>(bytes());
        for (int k = 0; k < packets_; ++k)
          envelope_.accept({}, codec_, plan_.whole, packet(k), length, length, place(k), 100 + k);
      });
      envelope_.arrived({}, false);
    });
  }
  std::string settle() {
    try {
      envelope_.settle({}, step);
    } catch (const wire_error& failure) {
      return failure.what();
    }
    return "";
  }
  std::uint16_t flags() const { return envelope_.found().flags; }
  void reopen() { envelope_.open({}, {step, agreement, now_.data()}, 2); }
  template <class V>
  void write(int k, index_t at, V value) {
    upload(view<const V>(&value, 1), view<V, Device::memory>(reinterpret_cast<V*>(packet(k) + at), 1));
  }
  /// That of the host's envelope.
  bool right_header(int k, std::uint16_t flags) {
    std::array<std::byte, sizeof(PacketHeader)> here{}, there{};
    Envelope<executor::host> host;
    host.open({}, {step, agreement, nullptr}, 2);
    host.flags = flags;
    host.stamp({}, static_cast<std::uint64_t>(bytes()), place(k), here.data());
    download(view<const std::byte, Device::memory>(packet(k), sizeof(PacketHeader)), view<std::byte>(there));
    return here == there;
  }

 private:
  static std::uint64_t place(int k) { return detail::place_of(Phase::spread, k, k); }
  std::byte* packet(int k) { return place_.data() + k * bytes(); }
  template <class Act>
  static index_t launches(const Act& act) {
    const index_t before = Device::launches();
    act();
    return Device::launches() - before;
  }

  int packets_;
  Layout layout_;
  Plan plan_;
  Codec<C, Residual, Device> codec_;
  buffer<StepScalars, Device::memory> now_;
  buffer<std::byte, Device::memory> place_;
  Envelope<Device> envelope_;
};

}  // namespace

TEST_CASE("packets are stamped and accepted together, by few kernels, as they are one by one") {
  const float unlikely = std::numeric_limits<float>::infinity();
  for (const index_t scales : {10, 3000, 9000})
    for (const int packets : {1, 2, 16, 17}) {
      CAPTURE(scales);
      CAPTURE(packets);
      Batch batch(packets, scales);
      const index_t kernels = packets > 16 ? 2 : 1;
      // One more where a batch has more scales than one block looks at.
      index_t looks = 0;
      for (const index_t together : {std::min(packets, 16), packets - std::min(packets, 16)})
        looks += together * scales > 4096 ? 1 : 0;
      CHECK(batch.stamp() == kernels);
      CHECK(batch.accept() == kernels + looks);
      CHECK(batch.settle() == "");
      for (int k = 0; k < packets; ++k) CHECK(batch.right_header(k, PacketHeader::finite));

      batch.reopen();
      batch.note();
      CHECK(batch.stamp() == kernels);
      CHECK(batch.noted());
      for (int k = 0; k < packets; ++k) CHECK(batch.right_header(k, 3));
      batch.reopen();
      batch.accept();
      CHECK(batch.settle() == "");
      CHECK(batch.flags() == 3);
      batch.reopen();
      batch.note();
      CHECK(batch.settle() == "");
      CHECK(batch.flags() == 3);
      // What a round that was given up had to note is none of the next one's.
      batch.note();
      batch.reopen();
      CHECK(batch.noted());
      CHECK(batch.settle() == "");
      CHECK(batch.flags() == PacketHeader::finite);

      for (const int damaged : {packets - 1, packets / 2, 0}) {
        const std::string sender = "the packet from rank " + std::to_string(100 + damaged) + " ";
        for (const index_t scale : {index_t{0}, scales / 2, scales - 1}) {
          batch.reopen();
          batch.write(damaged, batch.scale_at(scale), unlikely);
          batch.accept();
          CHECK(batch.settle().find(sender + "has a scale that no finite message has") != std::string::npos);
          batch.write(damaged, batch.scale_at(scale), 0.0F);
        }
        batch.reopen();
        batch.accept();
        CHECK(batch.settle() == "");
      }
      // Of several the first.
      batch.reopen();
      for (int k = packets / 2; k < packets; ++k) batch.write(k, batch.scale_at(k % scales), unlikely);
      if (packets > 2) batch.write(packets - 2, offsetof(PacketHeader, step), std::uint64_t{9});
      batch.accept();
      CHECK(batch.settle().find("the packet from rank " + std::to_string(100 + packets / 2) + " ") !=
            std::string::npos);
    }
}

TEST_CASE("a compressed step takes as many launches and copies whatever the number of ranks") {
  constexpr FrozenVariance at_once{.freeze = AtStep{1}};
  Layout tensors;
  for (int k = 0; k < 148; ++k) tensors.add({"t" + std::to_string(k), {40 + k}, 1, 1, k % 2 == 0});
  for (const int ranks : {2, 4, 8, 16}) {
    CAPTURE(ranks);
    // docs/cuda.md says so.
    CHECK(launches_of(OneBitAdam<>{.preconditioner = at_once}, Layout::flat(5000), ranks) == 15);
    CHECK(launches_of(OneBitAdam<>{.preconditioner = at_once}, tensors, ranks) == 17);
    using InBlocks = OneBitAdam<ScaledSign<RootMeanSquare, PerBlock<512>>>;
    CHECK(launches_of(InBlocks{.preconditioner = at_once}, Layout::flat(5000), ranks) == 12);
  }
}

TEST_CASE("a default step over NCCL takes few launches, with few arguments for a flat model, of any size") {
  constexpr FrozenVariance at_once{.freeze = AtStep{1}};
  const StepCost one_bit = cost_of(OneBitAdam<>{.preconditioner = at_once}, Layout::flat(20000), 2);
  const StepCost adam = cost_of(Adam<>{}, Layout::flat(20000), 2, true);
  CHECK(one_bit.launches == 16);
  CHECK(adam.launches == 12);
  const StepCost one_bit_of_32 = cost_of(OneBitAdam<>{.preconditioner = at_once}, Layout::flat(20000), 32);
  const StepCost adam_of_32 = cost_of(Adam<>{}, Layout::flat(20000), 32, true);
  for (const StepCost& cost : {one_bit, adam, one_bit_of_32, adam_of_32}) CHECK(cost.argument_bytes <= 4096);
  // As many for a large one: it is a single slice, and no verb takes more launches for more tiles.
  for (const bool compressed : {false, true})
    CHECK(terse::detail::slices_of(Layout::flat(100'000'000).range(),
                                   detail::slice_bytes_of(automatic_slices, true, compressed))
              .size() == 1);
}

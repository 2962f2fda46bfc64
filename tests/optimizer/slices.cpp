// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <thread>

#include "support.hpp"

// Packets in slices, and steps that are opened before their gradient is there. This program replaces operator new, to count
// bytes.

using namespace terse;
using namespace terse::test;

namespace {
std::atomic<std::uint64_t> allocations{0}, allocated{0};
void* count(void* memory) {
  ++allocations;
  if (memory == nullptr) throw std::bad_alloc();
  allocated += malloc_usable_size(memory);
  return memory;
}
void release(void* memory) {
  allocated -= malloc_usable_size(memory);
  std::free(memory);
}
}  // namespace

__attribute__((noinline)) void* operator new(std::size_t size) {
  return count(std::malloc(size > 0 ? size : 1));
}
__attribute__((noinline)) void* operator new(std::size_t size, std::align_val_t boundary) {
  const auto unit = static_cast<std::size_t>(boundary);
  return count(std::aligned_alloc(unit, (size + unit - 1) / unit * unit));
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { release(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { release(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }

namespace {

Layout six() {
  Layout layout;
  layout.add({"first", {70, 50}}).add({"bias", {70}, 1, 0, false}).add({"second", {40, 70}, 0.5F});
  layout.add({"norm", {40}, 1, 0, false}).add({"third", {9, 130}}).add({"head", {11}});
  return layout;
}

/// What a walk shows: the first one is kept, the next ones write it back.
struct Saved {
  std::map<std::string, std::vector<std::byte>> parts;

  template <class Number>
  void operator()(const std::string& name, view<Number> part, index_t) {
    const auto bytes = std::as_writable_bytes(std::span(part.data(), at(part.size())));
    auto [place, fresh] = parts.try_emplace(name, bytes.begin(), bytes.end());
    if (!fresh) std::copy(place->second.begin(), place->second.end(), bytes.begin());
  }
  void operator()(const std::string& name, std::uint64_t& value) {
    (*this)(name, view<std::uint64_t>(&value, 1), 0);
  }
};

/// In which order a rank says that its segments are ready in a step; none for a step that is not opened.
using Order = std::vector<index_t>;

struct Plain {
  std::optional<Order> operator()(int, std::uint64_t) const { return std::nullopt; }
};
/// Another order, and another number of them, on each rank and in each step; every fifth step is not opened.
struct Shuffled {
  std::optional<Order> operator()(int rank, std::uint64_t step) const {
    if ((step + static_cast<std::uint64_t>(rank)) % 5 == 0) return std::nullopt;
    Order order(6);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(static_cast<unsigned>(rank + 100 * static_cast<int>(step)));
    std::shuffle(order.begin(), order.end(), random);
    if (step % 3 == 0) order.resize(random() % 7);
    return order;
  }
};

constexpr float nonsense = 1e9F;

/// Every rank's parameters and state at the end. Of an opened step a gradient is there when its segment is said to be ready, or
/// at the end, and not before.
template <class R, class When>
std::vector<Snapshot> train(const R& recipe, int ranks, index_t slice_bytes, const When& when,
                            Options options = {}) {
  options.slice_bytes = slice_bytes;
  std::vector<Snapshot> ends(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = six();
    Optimizer optimizer{recipe, transport, layout, options};
    Floats x = start(layout), g(x.size());
    for (std::uint64_t step = 1; step <= 9; ++step) {
      const Floats whole = gradient(layout, transport.rank(), step, 1);
      if (const auto order = when(transport.rank(), step)) {
        std::fill(g.begin(), g.end(), nonsense);
        optimizer.begin(x, g, 0.5F);
        CHECK(optimizer.begun());
        for (const index_t segment : *order) {
          const Segment& s = layout.segments()[at(segment)];
          std::copy_n(whole.begin() + s.offset, s.count, g.begin() + s.offset);
          optimizer.ready(segment);
        }
      }
      g = whole;
      optimizer.step(x, g, 0.5F);
    }
    optimizer.walk(ends[at(transport.rank())].state);
    ends[at(transport.rank())].parameters = x;
  });
  return ends;
}

void check_equal(const std::vector<Snapshot>& some, const std::vector<Snapshot>& others) {
  for (std::size_t rank = 0; rank < some.size(); ++rank) {
    CAPTURE(rank);
    CHECK(some[rank].parameters == others[rank].parameters);
    CHECK(some[rank].state.parts == others[rank].state.parts);
    CHECK(some[rank].parameters == some[0].parameters);
  }
}

/// Bits don't depend on when gradients become ready; of full precision over ScatterGather not on slices either.
template <class R>
void check_bits(const R& recipe, bool same_in_slices, const Options& options = {}) {
  CAPTURE(type_name<R>());
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const auto whole = train(recipe, ranks, 0, Plain{}, options);
    check_equal(train(recipe, ranks, 0, Shuffled{}, options), whole);
    for (const index_t slice_bytes : {1024, 9000}) {
      CAPTURE(slice_bytes);
      const auto sliced = train(recipe, ranks, slice_bytes, Plain{}, options);
      if (same_in_slices) check_equal(sliced, whole);
      check_equal(train(recipe, ranks, slice_bytes, Shuffled{}, options), sliced);
    }
  }
}

template <class P>
OneBitAdam<Sign, FrozenVariance, P> one_bit(std::uint64_t exact_steps = 4) {
  return {.learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{exact_steps}}};
}

struct Read {
  const float* values;
  float operator()(const Piece&, index_t i) const { return values[i]; }
  float operator()(const Piece&, index_t i, float) const { return values[i]; }
};
struct Write {
  float* values;
  void operator()(const Piece&, index_t i, float mean) const { values[i] = mean; }
};

/// A round in slices against a round for each slice, on channels of their own.
template <class C, class F, class P>
void check_rounds(const C& compressor) {
  CAPTURE(type_name<C>());
  CAPTURE(type_name<P>());
  for (const int ranks : {2, 3})
    ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
      using X = Exchange<C, F, P, executor::host>;
      Channel channel(transport);
      const Layout layout = six();
      const index_t slice_bytes = 2000;
      X sliced(executor::host{}, channel, layout, layout.range(), compressor, F{}, false, P{}, slice_bytes);
      std::vector<std::unique_ptr<X>> rounds;
      for (const Range& range : terse::detail::slices_of(layout.range(), slice_bytes))
        rounds.push_back(
            std::make_unique<X>(executor::host{}, channel, layout, range, compressor, F{}, false, P{}));
      REQUIRE(rounds.size() == 16);
      Floats once(at(layout.size())), one_by_one(once.size());
      for (std::uint64_t step = 1; step <= 4; ++step) {
        const Floats g = gradient(layout, transport.rank(), step, 1);
        const StepContext context{.step = step, .seed = 7};
        const Message message{Read{g.data()}, Read{g.data()}};
        sliced.mix(context, {}, message, Message{Write{once.data()}, Write{once.data()}});
        for (const auto& round : rounds)
          round->mix(context, {}, message, Message{Write{one_by_one.data()}, Write{one_by_one.data()}});
        CHECK(once == one_by_one);
      }
      index_t bytes = 0;
      for (const auto& round : rounds) bytes += round->most_bytes();
      CHECK(sliced.most_bytes() == bytes);
    });
}

/// The largest |a - b| / (1 + |b|).
double farthest(const Floats& a, const Floats& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most,
                    std::abs(static_cast<double>(a[i]) - b[i]) / (1 + std::abs(static_cast<double>(b[i]))));
  return most;
}

/// Bytes that a rank alone of `ranks` allocates when it makes an optimizer.
template <class R>
std::uint64_t bytes_of(const R& recipe, const Layout& layout, index_t slice_bytes, int ranks) {
  std::uint64_t bytes = 0;
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    barrier(transport);
    const std::uint64_t before = allocated;
    barrier(transport);
    Optimizer optimizer{recipe, transport, layout, Options{.slice_bytes = slice_bytes}};
    barrier(transport);
    if (transport.rank() == 0) bytes = (allocated - before) / static_cast<std::uint64_t>(ranks);
    barrier(transport);
  });
  return bytes;
}

}  // namespace

TEST_CASE("a step has the same bits in slices, and in whatever order gradients become ready") {
  check_bits(Adam<>{.learning_rate = 1e-2F, .weight_decay = 0.1F}, true);
  check_bits(Adam<>{.learning_rate = 1e-2F}, true, {.on_non_finite = NonFinite::zero});
  check_bits(Adam<Ring>{.learning_rate = 1e-2F}, false);
  check_bits(Adam<Star>{.learning_rate = 1e-2F}, true);
  check_bits(Adam<BySize<>>{.learning_rate = 1e-2F, .topology = {.from = 300}}, false);
  check_bits(Lamb<>{.learning_rate = 1e-2F}, true);
  check_bits(one_bit<ScatterGather>(), false);
  check_bits(one_bit<Ring>(), false);
  check_bits(one_bit<AllGather>(), false);
  check_bits(PowerSgd<2>{.learning_rate = 1e-2F}, true);
  check_bits(DeepGradientCompression<>{.learning_rate = 1e-2F}, false);
  check_bits(Ef21Sgd<>{.learning_rate = 1e-2F}, false);
}

TEST_CASE("a compressed round in slices is a round for each slice") {
  check_rounds<Sign, Residual, ScatterGather>({});
  check_rounds<Sign, Residual, Ring>({});
  check_rounds<Qsgd<4>, NoErrorFeedback, ScatterGather>({});
  check_rounds<TopK<>, Residual, AllGather>({});
  check_rounds<RandomK, Residual, Star>({});
  check_rounds<ScaledSign<MeanAbs>, Ef21, AllGather>({});
}

TEST_CASE("what compressed slices keep is saved, and resumed with the same bits") {
  const auto check = [](const auto& recipe, const std::string& kept) {
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
      const Layout layout = six();
      const Options options{.slice_bytes = 2000};
      Optimizer optimizer{recipe, transport, layout, options};
      Floats x = start(layout);
      Saved saved;
      Floats y;
      for (std::uint64_t step = 1; step <= 9; ++step) {
        if (step == 7) {
          optimizer.walk(saved);
          y = x;
        }
        optimizer.step(x, gradient(layout, transport.rank(), step, 1));
      }
      CHECK(saved.parts.count(kept) == 1);
      CHECK(saved.parts.count("slice_15_" + kept) == (kept == "error" ? 0 : 1));
      Optimizer other{recipe, transport, layout, options};
      other.walk(saved);
      for (std::uint64_t step = 7; step <= 9; ++step)
        other.step(y, gradient(layout, transport.rank(), step, 1));
      CHECK(x == y);
    });
  };
  check(one_bit<ScatterGather>(1), "second_error");
  check(one_bit<Ring>(1), "error");
}

TEST_CASE(
    "where a step waits for a norm, or a recipe averages something else, a step may be opened all the same") {
  // The norm is a sum over the slices, whose last bits depend on them.
  check_bits(Adam<>{.learning_rate = 1e-2F}, false, {.clip_norm = 0.5F});
  check_bits(Adam<>{.learning_rate = 1e-2F}, true, {.on_non_finite = NonFinite::skip});
  check_bits(one_bit<ScatterGather>(), false, {.clip_norm = 0.5F});
  check_bits(LocalSgd<Adam<>>{.period = 3}, true);
}

TEST_CASE("around a ring the mean of slices is that of the whole, to rounding") {
  const Adam<Ring> recipe{.learning_rate = 1e-2F};
  const auto whole = train(recipe, 4, 0, Plain{}), sliced = train(recipe, 4, 1024, Plain{});
  CHECK(farthest(sliced[0].parameters, whole[0].parameters) < 1e-5);
  CHECK(farthest(sliced[0].parameters, whole[0].parameters) > 0);
}

TEST_CASE("BySize is the one topology for small chunks and the other for large ones") {
  const auto by_size = [](index_t from) {
    return train(Adam<BySize<>>{.learning_rate = 1e-2F, .topology = {.from = from}}, 3, 0, Plain{})[0]
        .parameters;
  };
  const index_t chunk = six().range().elements() / 3;
  const auto around = train(Adam<Ring>{.learning_rate = 1e-2F}, 3, 0, Plain{})[0].parameters;
  CHECK(by_size(chunk) == around);
  CHECK(by_size(chunk + 1) != around);
  CHECK(by_size(chunk + 1) == train(Adam<>{.learning_rate = 1e-2F}, 3, 0, Plain{})[0].parameters);
}

TEST_CASE("a gradient that is not finite in one slice throws on every rank, and no parameter moves") {
  const auto check = [](const auto& recipe) {
    for (const index_t where : {3, 5000, 7500})
      for (const bool opened : {false, true}) {
        CAPTURE(where);
        CAPTURE(opened);
        std::atomic<int> caught{0};
        ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
          const Layout layout = six();
          Optimizer optimizer{recipe, transport, layout, Options{.slice_bytes = 1024}};
          Floats x = start(layout);
          for (std::uint64_t step = 1; step <= 4; ++step) {
            Floats g = gradient(layout, transport.rank(), step, 1);
            if (step == 3 && transport.rank() == 1) g[at(where)] = std::numeric_limits<float>::quiet_NaN();
            const Floats before = x;
            try {
              if (opened) {
                optimizer.begin(x, g);
                for (index_t segment = 5; segment >= 2; --segment) optimizer.ready(segment);
              }
              optimizer.step(x, g);
              CHECK(x != before);
            } catch (const non_finite_error& fault) {
              CHECK(std::string(fault.what()).find("rank 1") != std::string::npos);
              CHECK(x == before);
              ++caught;
            }
          }
          CHECK(optimizer.steps() == 3);
        });
        CHECK(caught == 3);
      }
  };
  check(Adam<>{});
  check(one_bit<ScatterGather>(1));
  check(one_bit<Ring>(1));
}

TEST_CASE(
    "after the freeze what exact steps took is given back, and taken again for a checkpoint of before") {
  const Layout layout = Layout::flat(1 << 20);
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    std::vector<std::uint64_t> held(3);
    ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
      const auto note = [&](std::size_t place) {
        barrier(transport);
        if (transport.rank() == 0) held[place] = allocated;
        barrier(transport);
      };
      Optimizer optimizer{one_bit<ScatterGather>(), transport, layout};
      const Floats first = start(layout), g = gradient(layout, transport.rank(), 1, 1);
      Floats x = first;
      optimizer.step(x, g);
      Saved early;
      optimizer.walk(early);
      const Floats after_one = x;
      for (int step = 2; step <= 4; ++step) {
        if (step == 4) note(0);
        optimizer.step(x, g);
      }
      CHECK(!optimizer.full_precision());
      note(1);
      const index_t promised = optimizer.bytes_per_step().full_precision;
      optimizer.step(x, g);
      const Floats five = x;
      x = after_one;
      optimizer.walk(early);
      CHECK(optimizer.full_precision());
      CHECK(optimizer.bytes_per_step().full_precision == promised);
      optimizer.step(x, g);
      note(2);
      for (int step = 3; step <= 5; ++step) optimizer.step(x, g);
      CHECK(x == five);
      // A second time.
      x = after_one;
      optimizer.walk(early);
      for (int step = 2; step <= 5; ++step) optimizer.step(x, g);
      CHECK(x == five);
    });
    if (ranks == 1) continue;
    // Packets both ways, n floats and four slices each: four of 16 MiB are more than all there is.
    const std::uint64_t given_back = (held[0] - held[1]) / static_cast<std::uint64_t>(ranks);
    CHECK(given_back > 4 * static_cast<std::uint64_t>(layout.size()));
    CHECK(held[2] > held[1] + given_back * static_cast<std::uint64_t>(ranks) / 2);
  }
}

TEST_CASE("calls in another order are refused in words, and the step can still be taken") {
  const auto whole = train(Adam<>{}, 2, 1024, Plain{});
  std::vector<std::string> errors;
  ThreadGroup(1, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = six();
    Optimizer optimizer{Adam<>{}, transport, layout, Options{.slice_bytes = 1024}};
    Floats x = start(layout), other = x;
    const Floats g = gradient(layout, 0, 1, 1);
    const auto refused = [&](const auto& call) {
      try {
        call();
        errors.emplace_back();
      } catch (const usage_error& fault) {
        errors.emplace_back(fault.what());
      }
    };
    refused([&] { optimizer.ready(0); });
    optimizer.progress();
    optimizer.begin(x, g);
    optimizer.ready(5);
    refused([&] { optimizer.ready(5); });
    refused([&] { optimizer.ready(6); });
    refused([&] { optimizer.begin(x, g); });
    refused([&] { optimizer.step(other, g); });
    refused([&] { optimizer.step(x, g, 2); });
    refused([&] { optimizer.rescale("head", 1, 0); });
    optimizer.step(x, g);
    CHECK(x != other);
    CHECK(optimizer.steps() == 1);
    refused([&] { optimizer.ready(0); });
  });
  const std::vector<std::string> words{"belongs between",
                                       "called twice for segment 'head'",
                                       "has 6",
                                       "has opened a step",
                                       "other parameters",
                                       "gradient_scale",
                                       "before it",
                                       "belongs between"};
  REQUIRE(errors.size() == words.size());
  for (std::size_t k = 0; k < words.size(); ++k) {
    CAPTURE(errors[k]);
    CHECK(errors[k].find(words[k]) != std::string::npos);
  }
}

TEST_CASE("ranks with other numbers of slices are told so") {
  std::string what;
  try {
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{Adam<>{}, transport, six(),
                          Options{.slice_bytes = transport.rank() == 0 ? 1024 : 0}};
    });
  } catch (const mismatch_error& fault) {
    what = fault.what();
  }
  CHECK(what.find("slice_bytes") != std::string::npos);
}

TEST_CASE("a rank that is late while slices are under way ends the others' step at the deadline") {
  const auto check = [](const auto& recipe) {
    const auto begin = std::chrono::steady_clock::now();
    std::atomic<int> told{0};
    try {
      ThreadGroup(3, std::chrono::milliseconds(500)).run([&](Threads& transport) {
        const Layout layout = six();
        Optimizer optimizer{recipe, transport, layout, Options{.slice_bytes = 1024}};
        Floats x = start(layout);
        const Floats g = gradient(layout, transport.rank(), 1, 1);
        for (int step = 1; step <= 2; ++step) optimizer.step(x, g);
        const Floats before = x;
        optimizer.begin(x, g);
        for (index_t segment = 5; segment >= 3; --segment) optimizer.ready(segment);
        if (transport.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        try {
          optimizer.step(x, g);
        } catch (const peer_error&) {
          CHECK(x == before);
          ++told;
          throw;
        }
      });
    } catch (const peer_error&) {
    }
    CHECK(told >= 2);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(3));
  };
  check(Adam<Ring>{});
  check(one_bit<ScatterGather>(1));
}

TEST_CASE("packets of a full-precision step take n floats and four slices each way") {
  Layout layout;
  for (int k = 0; k < 8; ++k) layout.add({std::to_string(k), {1 << 18}});
  const auto bytes = static_cast<std::uint64_t>(layout.size()) * sizeof(float);
  const std::uint64_t slice = bytes / 32;
  // Beside them the two moments of Adam.
  const auto packets = [&](std::uint64_t all) {
    return static_cast<double>(all - 2 * bytes) / static_cast<double>(bytes);
  };
  const Adam<BySize<>> direct{.topology = {.from = layout.size()}};
  const double whole = packets(bytes_of(direct, layout, 0, 4));
  const double sliced = packets(bytes_of(direct, layout, static_cast<index_t>(slice), 4));
  const double around = packets(bytes_of(Adam<Ring>{}, layout, static_cast<index_t>(slice), 4));
  MESSAGE("packets, in n floats: " << whole << " in one, " << sliced << " in 32 slices, around a ring "
                                   << around);
  CHECK(whole > 2.7);
  CHECK(sliced < 1 + 4 * 2.0 / 32 + 0.02);
  CHECK(around < 1 + 4 * 2.0 / 32 + 0.02);
}

TEST_CASE("a step in slices allocates nothing, opened or not") {
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = six();
    Optimizer optimizer{one_bit<ScatterGather>(), transport, layout, Options{.slice_bytes = 1024}};
    Floats x = start(layout);
    const Floats g = gradient(layout, transport.rank(), 1, 1);
    barrier(transport);
    barrier(transport);
    const std::uint64_t before = allocations;
    for (std::uint64_t step = 1; step <= 12; ++step) {
      if (step % 2 == 0) {
        optimizer.begin(x, g);
        optimizer.progress();
        for (index_t segment = 5; segment >= 0; --segment) optimizer.ready(segment);
      }
      optimizer.step(x, g);
    }
    const std::uint64_t after = allocations;
    // Nobody goes on to a barrier, which allocates, before everybody has counted.
    static std::atomic<int> counted{0};
    ++counted;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (counted < 3 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    CHECK(after == before);
  });
}

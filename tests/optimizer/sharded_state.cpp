// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <string>

#include "checkpoint/scratch.hpp"
#include "optimizer/support.hpp"
#include "terse/checkpoint/elastic.hpp"

// The state of Sharded: after steps that fail, in 16 bits, in checkpoints of as many and of other ranks, and in steps that are
// opened early.

using namespace terse;
using namespace terse::test;

namespace {

Layout layers() {
  Layout layout;
  layout.add({"first", {37, 61}}).add({"bias", {61}, 1, 0, false}).add({"second", {61, 13}, 0.5F, 2});
  return layout;
}
Options sliced(index_t bytes) {
  Options options;
  options.slice_bytes = bytes;
  return options;
}

/// What a rank shows after training.
struct End {
  Floats x;
  Seen state;
};

template <class R>
std::vector<End> train(const R& recipe, int ranks, std::uint64_t first, std::uint64_t last,
                       const Options& options, const std::filesystem::path& from,
                       const std::filesystem::path& to, int saved_ranks) {
  std::vector<End> ends(at(ranks));
  const auto file = [](const std::filesystem::path& folder, int rank) {
    return folder.string() + "-" + std::to_string(rank);
  };
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = layers();
    Optimizer optimizer{recipe, transport, layout, options};
    End& mine = ends[at(transport.rank())];
    mine.x = start(layout);
    if (saved_ranks == ranks) {
      checkpoint::load(file(from, transport.rank()), optimizer, mine.x);
    } else if (saved_ranks > 0) {
      std::vector<std::filesystem::path> files;
      for (int rank = 0; rank < saved_ranks; ++rank) files.push_back(file(from, rank));
      checkpoint::load_elastic(files, optimizer, mine.x);
    }
    // All ranks have the same gradient, so that the number of ranks doesn't matter.
    for (std::uint64_t step = first; step <= last; ++step)
      optimizer.step(mine.x, gradient(layout, 0, step, 1));
    if (!to.empty()) checkpoint::save(file(to, transport.rank()), optimizer, mine.x);
    optimizer.walk(mine.state);
  });
  return ends;
}

template <class H>
std::vector<H> narrow(const Floats& values) {
  std::vector<H> result;
  for (const float value : values) result.push_back(narrowed<H>(value));
  return result;
}

}  // namespace

TEST_CASE("a gradient that is not finite changes nothing, on no rank") {
  for (const index_t slice : {index_t{0}, index_t{1024}})
    for (const NonFinite policy : {NonFinite::throw_, NonFinite::skip})
      ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
        const Layout layout = layers();
        Options options = sliced(slice);
        options.on_non_finite = policy;
        Optimizer optimizer{Sharded<Adam<>>{}, transport, layout, options};
        Floats x = start(layout);
        optimizer.step(x, gradient(layout, transport.rank(), 1, 1));
        Seen before, after;
        optimizer.walk(before);
        const Floats was = x;
        Floats g = gradient(layout, transport.rank(), 2, 1);
        // In a chunk of another rank, and in the last slice to be sent.
        if (transport.rank() == 2) g[1] = std::numeric_limits<float>::infinity();
        if (policy == NonFinite::skip) {
          CHECK(!optimizer.step(x, g).applied);
        } else {
          int culprit = -1;
          try {
            optimizer.step(x, g);
          } catch (const non_finite_error& error) {
            culprit = error.culprit();
            CHECK(std::string(error.what()).find("first") != std::string::npos);
          }
          CHECK(culprit == 2);
        }
        optimizer.walk(after);
        CHECK(x == was);
        CHECK(after.parts == before.parts);
        CHECK(optimizer.steps() == 1);
        optimizer.step(x, gradient(layout, transport.rank(), 2, 1));
        CHECK(x != was);
      });
}

TEST_CASE("finite messages whose mean is not finite: all ranks throw, and no parameter changes") {
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = layers();
    Sharded<Adam<>, UnbiasedRandomK> recipe;
    recipe.compressor.selection.ratio = 0.01;
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout), g(x.size());
    const Floats was = x;
    // Multiplied by 100 for the elements that are not picked. The first chunk alone has them.
    std::fill(g.begin(), g.begin() + 640, 5e17F);
    CHECK_THROWS_AS(optimizer.step(x, g), non_finite_error);
    CHECK(x == was);
    optimizer.step(x, gradient(layout, transport.rank(), 1, 1));
    CHECK(x != was);

    // Or such means count as 0.
    Options options;
    options.on_non_finite = NonFinite::zero;
    Optimizer lenient{recipe, transport, layout, options};
    lenient.step(x, g);
    Seen state;
    lenient.walk(state);
    for (const auto& [name, values] : state.parts)
      CHECK(std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); }));
  });
}

TEST_CASE("gradients that are not finite may count as 0, and checksums cover both ways, as in Adam") {
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = layers();
    Options options = sliced(1024);
    options.on_non_finite = NonFinite::zero;
    options.check_payload = true;
    Optimizer whole{Adam<>{}, transport, layout, options};
    Optimizer sharded{Sharded<Adam<>>{}, transport, layout, options};
    Floats x = start(layout), y = x;
    for (std::uint64_t step = 1; step <= 3; ++step) {
      Floats g = gradient(layout, transport.rank(), step, 1);
      if (transport.rank() == 1) g[at(layout.segments()[2].offset)] = std::numeric_limits<float>::quiet_NaN();
      whole.step(x, g);
      sharded.step(y, g);
      CHECK(x == y);
    }
  });
}

TEST_CASE("training with compressed gradients and parameters ends as near to the minimum") {
  const auto distance = [](const auto& recipe) {
    const Layout layout = layers();
    double sum = 0;
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout};
      Floats x = start(layout), g(x.size());
      for (std::uint64_t step = 1; step <= 300; ++step) {
        optimizer.learning_rate(step <= 150 ? 0.01F : 0.002F);
        for (index_t i = 0; i < layout.size(); ++i)
          g[at(i)] = x[at(i)] + 0.3F * noise(7, transport.rank(), step, i);
        optimizer.step(x, g);
      }
      if (transport.rank() == 0)
        for (const float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
    });
    return sum;
  };
  const double exact = distance(Sharded<Adam<>>{}),
               compressed = distance(Sharded<Adam<>, Uniform<4>, GatherBy<Uniform<4>>>{});
  const double before = [] {
    double sum = 0;
    for (const float value : start(layers())) sum += static_cast<double>(value) * static_cast<double>(value);
    return sum;
  }();
  CHECK(exact < 0.02 * before);
  CHECK(compressed < 1.1 * exact);
}

TEST_CASE("16-bit models have the bits of Adam, and their masters are sharded") {
  const auto follow = [](auto number, auto gather) {
    using H = decltype(number);
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
      const Layout layout = layers();
      const Adam<> adam{.learning_rate = 0.01F, .weight_decay = 0.1F};
      const Sharded<Adam<>, decltype(gather)> recipe{adam, {}, {}, gather};
      Optimizer whole{adam, transport, layout, {}, executor::host{}, Numbers<H>{}};
      Optimizer sharded{recipe, transport, layout, {}, executor::host{}, Numbers<H>{}};
      std::vector<H> x = narrow<H>(start(layout)), y = x;
      for (std::uint64_t step = 1; step <= 8; ++step) {
        const std::vector<H> g = narrow<H>(gradient(layout, transport.rank(), step, 1));
        whole.step(x, g, 0.25F);
        sharded.step(y, g, 0.25F);
        REQUIRE(x == y);
      }
      Seen of_whole, of_sharded;
      whole.walk(of_whole);
      sharded.walk(of_sharded);
      const std::vector<double>&all = of_whole.parts.at("masters"), &mine = of_sharded.parts.at("masters");
      CHECK(mine.size() < all.size() / 2);
      CHECK(std::equal(mine.begin(), mine.end(), all.begin() + of_sharded.offsets.at("masters")));
    });
  };
  follow(bf16{}, GatherBy<>{});
  follow(bf16{}, GatherBy<Cast<bf16>>{});
  follow(fp16{}, GatherBy<Cast<fp16>>{});
}

TEST_CASE("a resumed run has the same bits, and another number of ranks goes on") {
  Scratch scratch;
  const auto folder = scratch.path() / "save";
  const auto resume = [&](const auto& recipe, const Options& options, bool exact) {
    CAPTURE(options.slice_bytes);
    const auto whole = train(recipe, 3, 1, 8, options, {}, {}, 0);
    train(recipe, 3, 1, 4, options, {}, folder, 0);
    const auto same = train(recipe, 3, 5, 8, options, folder, {}, 3);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK(same[rank].x == whole[rank].x);
      CHECK(same[rank].state.parts == whole[rank].state.parts);
    }
    if (!exact) return;
    // The mean of equal gradients of 2 and 4 ranks is exact.
    const auto of_four = train(recipe, 4, 1, 8, options, {}, {}, 0);
    train(recipe, 4, 1, 4, options, {}, folder, 0);
    for (const End& rank : train(recipe, 2, 5, 8, options, folder, {}, 4)) CHECK(rank.x == of_four[0].x);
  };
  const Adam<> adam{.learning_rate = 0.03F, .weight_decay = 0.1F};
  for (const index_t slice : {index_t{0}, index_t{4096}}) {
    resume(Sharded<Adam<>>{adam}, sliced(slice), true);
    resume(Sharded<Adam<>, GatherBy<Cast<bf16>>>{adam}, sliced(slice), true);
    resume(Sharded<Adam<>, Uniform<8>, GatherBy<Uniform<8>>>{adam}, sliced(slice), false);
  }
}

TEST_CASE("steps that are opened before their gradient is there have the same bits") {
  for (const index_t slice : {index_t{0}, index_t{1024}}) {
    std::vector<Floats> ends(2);
    for (const bool early : {false, true})
      ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
        const Layout layout = layers();
        Optimizer optimizer{Sharded<Adam<>, Uniform<8>>{}, transport, layout, sliced(slice)};
        Floats x = start(layout), g(x.size());
        for (std::uint64_t step = 1; step <= 5; ++step) {
          const Floats whole = gradient(layout, transport.rank(), step, 1);
          if (early) {
            std::fill(g.begin(), g.end(), 1e9F);
            optimizer.begin(x, g, 0.5F);
            for (index_t s = 2; s >= transport.rank() % 2; --s) {
              const Segment& segment = layout.segments()[at(s)];
              std::copy_n(whole.begin() + segment.offset, segment.count, g.begin() + segment.offset);
              optimizer.ready(s);
              optimizer.progress();
            }
          }
          g = whole;
          optimizer.step(x, g, 0.5F);
        }
        if (transport.rank() == 1) ends[early ? 1 : 0] = x;
      });
    CHECK(ends[0] == ends[1]);
  }
}

TEST_CASE("replicas are compared, and bytes are known in advance") {
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = layers();
    for (const float clip : {std::numeric_limits<float>::infinity(), 1.0F}) {
      Options options = sliced(4096);
      options.clip_norm = clip;
      Optimizer exact{Sharded<Adam<>>{}, transport, layout, options};
      Floats x = start(layout);
      CHECK(exact.full_precision());
      exact.step(x, gradient(layout, transport.rank(), 1, 1));  // the first one also compares parameters
      const StepResult result = exact.step(x, gradient(layout, transport.rank(), 1, 1));
      CHECK(!result.compressed);
      CHECK(static_cast<index_t>(result.bytes_sent) == exact.bytes_per_step().full_precision);
      CHECK(exact.bytes_per_step().compressed == 0);
      Optimizer compressed{Sharded<Adam<>, Uniform<8>>{}, transport, layout, options};
      compressed.step(x, gradient(layout, transport.rank(), 1, 1));
      CHECK(static_cast<index_t>(compressed.step(x, gradient(layout, transport.rank(), 1, 1)).bytes_sent) ==
            compressed.bytes_per_step().compressed);
    }
    Options options;
    options.compare_every = 1;
    // Exact parameters replace what a rank has changed; differences keep it.
    Optimizer exact{Sharded<Adam<>>{}, transport, layout, options};
    Optimizer differing{Sharded<Adam<>, GatherBy<Cast<bf16>>>{}, transport, layout, options};
    Floats x = start(layout), y = x;
    exact.step(x, gradient(layout, transport.rank(), 1, 1));
    differing.step(y, gradient(layout, transport.rank(), 1, 1));
    if (transport.rank() == 1) x[0] = y[0] = 7;  // rank 0's
    exact.step(x, gradient(layout, transport.rank(), 2, 1));
    CHECK(x[0] != 7);
    CHECK_THROWS_AS(differing.step(y, gradient(layout, transport.rank(), 2, 1)), mismatch_error);
  });
}

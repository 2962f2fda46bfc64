// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>

#include "checkpoint/scratch.hpp"
#include "optimizer/support.hpp"
#include "reference/dense.hpp"
#include "terse/checkpoint/elastic.hpp"

// Sharded against the unsharded optimizer, whose bits it has, against an oracle in double, and in the state that it keeps.

using namespace terse;
using namespace terse::test;

namespace {

/// Sizes that no number of ranks divides, excluded segments, scales, and more than one slice of 4 KiB.
Layout uneven() {
  Layout layout;
  layout.add({"first", {37, 61}}).add({"bias", {61}, 1, 0, false}).add({"second", {61, 13}, 0.5F, 2});
  layout.add({"norm", {13}, 2, 0, false}).add({"head", {1}}).add({"last", {30, 29}});
  return layout;
}
/// Fewer aligned blocks than ranks.
Layout tiny() {
  Layout layout;
  layout.add({"only", {70}});
  return layout;
}
Layout with_groups() {
  Layout layout;
  layout.add({"first", {37, 61}});
  Segment bias{"bias", {200}};
  bias.group = 3;
  Segment second{"second", {61, 13}};
  second.group = 7;
  return layout.add(bias).add(second);
}

/// 3 KB have one slice by default, and here several.
Options sliced(index_t bytes) {
  Options options;
  options.slice_bytes = bytes;
  return options;
}

template <class R>
History train(const R& recipe, const Layout& layout, int ranks, const Options& options = {}) {
  return run(recipe, layout, ranks, 6, 1, options, [](auto& changed, std::uint64_t step) {
    if (step == 4) set_learning_rate(changed, 0.02F);
  });
}

void check_equal(const History& got, const History& wanted) {
  for (std::size_t step = 0; step < wanted.size(); ++step)
    for (std::size_t rank = 0; rank < wanted[step].size(); ++rank)
      CHECK(got[step][rank].parameters == wanted[step][rank].parameters);
}

/// The shares of all ranks, put together; checks that they don't overlap.
std::vector<double> together(const Layout& layout, const std::vector<Snapshot>& ranks,
                             const std::string& name) {
  std::vector<double> whole(at(layout.size()));
  std::vector<int> owners(whole.size());
  for (const Snapshot& rank : ranks)
    for (const auto& [part, values] : rank.state.parts) {
      if (!part.ends_with(name)) continue;
      const auto offset = at(rank.state.offsets.at(part));
      for (std::size_t i = 0; i < values.size(); ++i) {
        whole[offset + i] = values[i];
        ++owners[offset + i];
      }
    }
  each(
      layout, [](const Segment&) { return true; }, [&](std::size_t i) { REQUIRE(owners[i] == 1); });
  return whole;
}

constexpr auto all = [](const Segment&) { return true; };

}  // namespace

TEST_CASE("sharded Adam has the bits of Adam") {
  const Adam<> adam{.learning_rate = 0.03F, .weight_decay = 0.1F};
  for (const int ranks : {1, 2, 3, 4})
    for (const index_t slice : {index_t{0}, index_t{4096}}) {
      CAPTURE(ranks);
      CAPTURE(slice);
      const Options options = sliced(slice);
      const History wanted = train(adam, uneven(), ranks, options);
      const History got = train(Sharded<Adam<>>{adam}, uneven(), ranks, options);
      check_equal(got, wanted);
      for (const std::string name : {"momentum", "variance"}) {
        const std::vector<double> state = together(uneven(), got.back(), name);
        each(uneven(), all,
             [&](std::size_t i) { REQUIRE(state[i] == wanted.back()[0].state.parts.at(name)[i]); });
      }
      check_equal(train(Sharded<Adam<>>{adam}, tiny(), ranks, options), train(adam, tiny(), ranks, options));
    }
}

TEST_CASE("other elementwise methods keep their bits, with clipping, groups and 16-bit gradients' scales") {
  for (const index_t slice : {index_t{0}, index_t{4096}}) {
    const Options options = sliced(slice);
    const Lion<> lion{.learning_rate = 0.01F, .weight_decay = 0.1F};
    check_equal(train(Sharded<Lion<>>{lion}, uneven(), 3, options), train(lion, uneven(), 3, options));
    const Adam<> adam{.learning_rate = 0.03F};
    check_equal(train(Sharded<Adam<>>{adam}, with_groups(), 3, options),
                train(adam, with_groups(), 3, options));
  }
}

TEST_CASE("groups step by their own hyper-parameters on every owner") {
  std::vector<Floats> ends(2);
  for (const bool sharded : {false, true})
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
      const Layout layout = with_groups();
      Floats x = start(layout);
      const auto steps = [&](auto& optimizer, auto adam_of) {
        adam_of(optimizer.group(3)).beta1 = 0.5F;
        adam_of(optimizer.group(7)).learning_rate = 0.1F;
        for (std::uint64_t step = 1; step <= 4; ++step) {
          if (step == 3) optimizer.rescale("second", 0.25F, 3);
          optimizer.step(x, gradient(layout, transport.rank(), step, 1), 0.3F);
        }
        CHECK_THROWS_AS(optimizer.group(4), usage_error);
      };
      const Adam<> adam{.learning_rate = 0.03F, .weight_decay = 0.1F};
      if (sharded) {
        Optimizer optimizer{Sharded<Adam<>>{adam}, transport, layout};
        steps(optimizer, [](auto& recipe) -> Adam<>& { return recipe.inner; });
      } else {
        Optimizer optimizer{adam, transport, layout};
        steps(optimizer, [](auto& recipe) -> Adam<>& { return recipe; });
      }
      if (transport.rank() == 1) ends[sharded ? 1 : 0] = x;
    });
  CHECK(ends[0] == ends[1]);
}

TEST_CASE("sharded Adam follows the oracle, clipped by the norm of the mean") {
  for (const int ranks : {2, 3}) {
    Options options = sliced(4096);
    options.clip_norm = 3;
    reference::Adam<>::Options by;
    by.weight_decay = 0.1;
    by.clip_norm = 3;
    const Layout layout = uneven();
    reference::Adam<> oracle(layout, ranks, by, start(layout));
    const History got =
        train(Sharded<Adam<>>{{.learning_rate = 0.03F, .weight_decay = 0.1F}}, layout, ranks, options);
    for (std::uint64_t step = 1; step <= got.size(); ++step) {
      std::vector<Floats> gradients;
      for (int rank = 0; rank < ranks; ++rank) gradients.push_back(gradient(layout, rank, step, 1));
      oracle.step(gradients, step < 4 ? 0.03 : 0.02);
      for (const Snapshot& rank : got[step - 1])
        CHECK(relative_error(layout, rank.parameters, oracle.parameters, all) < 1e-5);
    }
  }
}

TEST_CASE("compressed gradients are averaged by owners as by AllGather") {
  const auto compare = [](auto compressor, index_t slice) {
    using C = decltype(compressor);
    const Adam<C, AllGather> whole{.learning_rate = 0.03F, .weight_decay = 0.1F, .compressor = compressor};
    Sharded<Adam<>, C> sharded{{.learning_rate = 0.03F, .weight_decay = 0.1F}};
    sharded.compressor = compressor;
    const History wanted = train(whole, uneven(), 3, sliced(slice)),
                  got = train(sharded, uneven(), 3, sliced(slice));
    check_equal(got, wanted);
    for (std::size_t rank = 0; rank < 3; ++rank)
      CHECK(got.back()[rank].state.parts.at("error") == wanted.back()[rank].state.parts.at("error"));
  };
  for (const index_t slice : {index_t{0}, index_t{4096}}) {
    compare(Uniform<8, Stochastic, Symmetric, MaxAbs, PerSegment>{}, slice);
    compare(ScaledSign<MeanAbs, PerSegment>{}, slice);
  }
}

TEST_CASE("an owner's state is 1 / W of the whole, and its messages are as long as the formula says") {
  Layout layout;
  layout.add({"first", {130, 300}}).add({"bias", {300}, 1, 0, false}).add({"second", {301, 90}});
  const auto floats = [](const Snapshot& rank) {
    double sum = 0;
    for (const auto& part : rank.state.parts) sum += static_cast<double>(part.second.size());
    return sum;
  };
  const Adam<> adam{.learning_rate = 0.03F};
  for (const int ranks : {2, 3, 4}) {
    const double whole = floats(run(adam, layout, ranks, 1, 1, {}, Unchanged{})[0][0]);
    for (const index_t slice : {index_t{0}, index_t{1} << 16}) {
      const History sharded = run(Sharded<Adam<>>{adam}, layout, ranks, 1, 1, sliced(slice), Unchanged{});
      for (const Snapshot& rank : sharded[0]) {
        CHECK(floats(rank) < 1.05 * whole / ranks);
        CHECK(floats(rank) > 0.95 * whole / ranks);
      }
    }
    // One slice: chunks by element, both ways in full precision.
    const History one = run(Sharded<Adam<>>{adam}, layout, ranks, 1, 1, sliced(0), Unchanged{});
    const std::vector<Range> cuts = layout.range().cut(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      std::uint64_t reduced = 0;
      const auto packet = [&](int c) {
        std::uint64_t bytes = 32;
        for (const Piece& piece : cuts[at(c)].pieces())
          bytes += to_eight(4 * static_cast<std::uint64_t>(piece.count));
        return bytes;
      };
      for (int c = 0; c < ranks; ++c)
        if (c != rank) reduced += packet(c);
      CHECK(sent_in(one[0][at(rank)]) == Sent{reduced, static_cast<std::uint64_t>(ranks - 1) * packet(rank)});
    }
  }
}

TEST_CASE("compressed parameters: masters have the exact bits, and copies follow them") {
  const Layout layout = uneven();
  const Adam<> adam{.learning_rate = 0.03F, .weight_decay = 0.1F};
  const auto follow = [&](auto gather, double bound) {
    using G = decltype(gather);
    for (const index_t slice : {index_t{0}, index_t{4096}}) {
      // The gradients of this test don't depend on the parameters.
      const History wanted = run(adam, layout, 3, 12, 1, sliced(slice), Unchanged{});
      const History got =
          run(Sharded<Adam<>, G>{adam, {}, {}, gather}, layout, 3, 12, 1, sliced(slice), Unchanged{});
      for (std::size_t step = 0; step < got.size(); ++step) {
        const std::vector<double> masters = together(layout, got[step], "masters");
        const Floats& exact = wanted[step][0].parameters;
        each(layout, all, [&](std::size_t i) { REQUIRE(masters[i] == static_cast<double>(exact[i])); });
        for (const Snapshot& rank : got[step]) CHECK(rank.parameters == got[step][0].parameters);
        const auto excluded = [](const Segment& segment) { return !segment.compress; };
        each(layout, excluded, [&](std::size_t i) { REQUIRE(got[step][0].parameters[i] == exact[i]); });
        double worst = 0;
        each(layout, all, [&](std::size_t i) {
          worst = std::max(worst, std::abs(static_cast<double>(got[step][0].parameters[i] - exact[i])));
        });
        CHECK(worst < bound);
        CHECK(worst > 0);
      }
    }
  };
  // Adam's steps are at most about the learning rate; weight decay adds a tenth of |x| <= 2 times it.
  const double step = 0.03 * 1.3;
  follow(GatherBy<Cast<bf16>>{}, step / 256);
  follow(GatherBy<Uniform<8, Nearest>>{}, 2 * step / 128);
}

TEST_CASE("owners of whole matrices have the bits of Muon and Lamb") {
  Layout layout;
  for (int k = 0; k < 7; ++k) {
    Segment matrix{"matrix " + std::to_string(k), {24 + k, 40 - k}};
    matrix.hidden = k != 3;
    layout.add(matrix)
        .add({"bias " + std::to_string(k), {30}, 1, 0, false})
        .add({"none " + std::to_string(k), {0}});
  }
  const auto compare = [&](const auto& whole) {
    using R = std::remove_cvref_t<decltype(whole)>;
    for (const int ranks : {1, 2, 3, 9}) {
      CAPTURE(ranks);
      const History wanted = train(whole, layout, ranks), got = train(Sharded<R>{whole}, layout, ranks);
      check_equal(got, wanted);
      CHECK(together(layout, got.back(), "momentum") == wanted.back()[0].state.parts.at("momentum"));
    }
  };
  compare(Muon<>{.learning_rate = 0.02F, .weight_decay = 0.1F});
  compare(Lamb<>{.learning_rate = 0.01F});
}

// SPDX-License-Identifier: Apache-2.0
#include "terse/checkpoint/elastic.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/scratch.hpp"
#include "optimizer/support.hpp"
#include "terse/checkpoint/folder.hpp"
#include "terse/optimizer/dm_sgd.hpp"
#include "terse/optimizer/e_control.hpp"
#include "terse/optimizer/ef21_sgd.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/local/local_sgd.hpp"

// What W ranks have saved, taken up by W' ranks: against sums over what each rank had, worked out here.

namespace {

using namespace terse;
using namespace terse::test;
using checkpoint::Elastic;
namespace fs = std::filesystem;

Layout layers() {
  Layout layout;
  // What is compressed begins within the arena, and has a gap.
  layout.add({"first", {70}, 1, 1, false}).add({"w", {65, 20}}).add({"excluded", {130}, 1, 1, false});
  layout.add({"empty", {0}}).add({"v", {700}});
  return layout;
}

/// What a rank has.
struct Rank {
  Floats x;
  Seen state;
  std::string error;
  bool foreign = false;
};
using World = std::vector<Rank>;

template <class R, class Use>
World on_ranks(const R& recipe, int ranks, const Options& options, Use use) {
  World world(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    Rank& mine = world[at(transport.rank())];
    const Layout layout = layers();
    Optimizer optimizer{recipe, transport, layout, options};
    mine.x = start(layout);
    use(transport, optimizer, mine.x, mine);
    optimizer.walk(mine.state);
  });
  return world;
}

/// Towards `target`, with noise of each rank.
template <class O>
void train(O& optimizer, Floats& x, std::uint64_t steps, float target = 0) {
  Floats g(x.size());
  for (std::uint64_t k = 0; k < steps; ++k) {
    for (std::size_t i = 0; i < x.size(); ++i)
      g[i] = x[i] - target + 0.2F * noise(7, optimizer.rank(), optimizer.steps(), static_cast<index_t>(i));
    optimizer.step(x, g);
  }
}
double distance(const std::vector<double>& x, double target) {
  double sum = 0;
  for (const double value : x) sum += (value - target) * (value - target);
  return sum / static_cast<double>(x.size());
}

template <class R>
World save(const R& recipe, int ranks, const fs::path& root, std::uint64_t steps = 13,
           const Options& options = {}) {
  return on_ranks(recipe, ranks, options, [&](Threads& transport, auto& optimizer, Floats& x, Rank&) {
    train(optimizer, x, steps);
    checkpoint::Folder(root, transport).save(optimizer, x);
  });
}
/// On ranks that have run already, so that nothing of their own may stay.
template <class R>
World load(const R& recipe, int ranks, const fs::path& root, Elastic elastic = Elastic::yes,
           const Options& options = {}, std::uint64_t before = 2) {
  return on_ranks(recipe, ranks, options, [&](Threads& transport, auto& optimizer, Floats& x, Rank& mine) {
    train(optimizer, x, before);
    try {
      checkpoint::Folder(root, transport, checkpoint::Use::read).load(optimizer, x, elastic);
    } catch (const error& fault) {
      mine.error = fault.what();
      mine.foreign = dynamic_cast<const foreign_checkpoint_error*>(&fault) != nullptr;
    }
  });
}

bool ends_with(const std::string& name, const std::string& end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

/// The sum over all ranks of a part, over the whole arena, or of its magnitudes.
std::vector<double> sum_of(const World& world, const std::string& name, bool magnitudes = false) {
  const Layout layout = layers();
  std::vector<double> sum(at(layout.size()));
  for (const Rank& rank : world) {
    if (rank.state.parts.count(name) == 0) continue;
    const std::vector<double> whole = spread_out(layout, rank.state, name);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += magnitudes ? std::abs(whole[i]) : whole[i];
  }
  return sum;
}
std::vector<double> mean_of(std::vector<double> sum, const World& world) {
  for (double& value : sum) value /= static_cast<double>(world.size());
  return sum;
}
std::vector<double> mean_parameters(const World& world) {
  std::vector<double> sum(world[0].x.size());
  for (const Rank& rank : world)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(rank.x[i]);
  return mean_of(sum, world);
}
double norm(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}
/// The bound of docs/checkpoints.md: half a unit in the last place of floats of these sizes.
bool within_rounding(const std::vector<double>& found, const std::vector<double>& exact,
                     const std::vector<double>& sizes) {
  REQUIRE(found.size() == exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i)
    if (std::abs(found[i] - exact[i]) > 0x1p-24 * std::abs(sizes[i]) * (1 + 1e-6) + 0x1p-149) return false;
  return true;
}
bool within_rounding(const std::vector<double>& found, const std::vector<double>& exact) {
  return within_rounding(found, exact, exact);
}

/// How a part is found again: as it was, element by element with its owner, or by its mean.
enum class Kept { as_it_was, by_owner, as_mean, dealt_out };
Kept kept_of(const std::string& name, const std::string& of_each_rank, bool copies) {
  if (name.find("second_") != name.npos) return Kept::by_owner;
  if (ends_with(name, "error") || ends_with(name, "own_copy")) return Kept::dealt_out;
  if (!of_each_rank.empty() && ends_with(name, of_each_rank)) return copies ? Kept::dealt_out : Kept::as_mean;
  return Kept::as_it_was;
}

/// That ranks, or nodes, have different parts again, which those that are as many times as before have to the bit.
void check_dealt(const World& saved, const World& found, const std::string& name) {
  const std::size_t from = saved.size(), to = found.size();
  const bool whole = saved[0].state.parts.at(name).size() == found[0].state.parts.at(name).size();
  if (to > 1 && from > 1 && whole)
    CHECK_FALSE(found[0].state.parts.at(name) == found[1].state.parts.at(name));
  for (std::size_t rank = 0; whole && to % from == 0 && rank < to; ++rank)
    CHECK(found[rank].state.parts.at(name) == saved[rank % from].state.parts.at(name));
}

/// `differ`: parameters do between ranks. `of_each_rank` names buffers that do beside errors and copies. At least `owned`
/// parts belong to chunks' owners.
template <class R>
void check(const R& recipe, const std::string& of_each_rank = "", bool differ = false, std::size_t owned = 0,
           const Options& options = {},
           const std::vector<std::pair<int, int>>& worlds = {{4, 3}, {3, 6}, {4, 1}, {1, 4}}) {
  INFO(type_name<R>());
  for (const auto& ranks : worlds) {
    const int from = ranks.first, to = ranks.second;
    CAPTURE(from);
    CAPTURE(to);
    const Scratch scratch;
    const World saved = save(recipe, from, scratch.path(), 13, options);
    const World found = load(recipe, to, scratch.path(), Elastic::yes, options);
    CHECK(found[0].error == "");
    bool alike = true;
    for (const Rank& rank : found) {
      alike = alike && rank.x == found[0].x;
      if (!differ) alike = alike && rank.x == saved[0].x;
    }
    CHECK(alike);
    CHECK(within_rounding({found[0].x.begin(), found[0].x.end()}, mean_parameters(saved)));
    if (differ && from > 1) CHECK_FALSE(saved[0].x == saved[1].x);
    std::size_t buffers = 0, moved = 0;
    const bool copies = found[0].state.parts.count("torn") > 0;
    for (const auto& part : found[0].state.parts) {
      const std::string& name = part.first;
      CAPTURE(name);
      const bool scalar = found[0].state.offsets.count(name) == 0;
      const Kept kept = scalar ? Kept::as_it_was : kept_of(name, of_each_rank, copies);
      ++buffers;
      if (kept == Kept::as_it_was) {
        bool same = true;
        for (const Rank& rank : found)
          same = same && rank.state.parts.at(name) == saved[0].state.parts.at(name);
        CHECK(same);
      } else if (kept == Kept::by_owner) {
        CHECK(sum_of(found, name) == sum_of(saved, name));
        // Of one rank's mean, signs lose nothing.
        if (from > 1) CHECK(norm(sum_of(saved, name)) > 0);
        ++moved;
      } else {
        const std::vector<double> mean = mean_of(sum_of(saved, name), saved);
        CHECK(norm(mean) > 0);
        const std::vector<double> now = mean_of(sum_of(found, name), found);
        if (kept == Kept::as_mean) {
          CHECK(within_rounding(now, mean));
        } else {
          CHECK(within_rounding(now, mean, mean_of(sum_of(found, name, true), found)));
          check_dealt(saved, found, name);
        }
      }
    }
    CHECK(buffers > 1);
    CHECK(moved >= owned);

    // And goes on.
    const World last =
        on_ranks(recipe, to, options, [&](Threads& transport, auto& optimizer, Floats& x, Rank&) {
          checkpoint::Folder folder(scratch.path(), transport);
          folder.load(optimizer, x, Elastic::yes);
          train(optimizer, x, 40, 1);
          folder.save(optimizer, x);
        });
    const double before = distance(mean_parameters(found), 1), after = distance(mean_parameters(last), 1);
    CHECK(std::isfinite(after));
    CHECK(after < 0.5 * before);
    CHECK(last[0].state.parts.at("steps")[0] == 53);
  }
}

void flip_last(const fs::path& file) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(-3, std::ios::end);
  const char old = static_cast<char>(bytes.get());
  bytes.seekp(-3, std::ios::end);
  bytes.put(static_cast<char>(old ^ 1));
}

bool contains(const std::string& text, const std::string& part) {
  INFO("the text: " << text);
  INFO("should have: " << part);
  const bool found = text.find(part) != text.npos;
  CHECK(found);
  return found;
}

const OneBitAdam<> one_bit{.learning_rate = 0.05F, .preconditioner = {.freeze = AtStep{6}}};

}  // namespace

TEST_CASE("what all ranks have alike, another number of ranks has to the bit") {
  check(Adam<>{.learning_rate = 0.05F});
}

TEST_CASE("errors keep their mean over the ranks, and second errors go to the new owners of their chunks") {
  check(one_bit, "", false, 1);
  check(one_bit, "", false, 2, Options{.slice_bytes = 2048});
  check(OneBitAdam<Sign, FrozenVariance, Ring>{.learning_rate = 0.05F,
                                               .preconditioner = {.freeze = AtStep{6}}});
}

TEST_CASE("errors between nodes keep their mean over the nodes, whoever of a node has them") {
  check(
      ErrorFeedbackSgd<ScaledSign<MeanAbs>, HeavyBall, Hierarchical<ScatterGather>>{
          .learning_rate = 0.05F, .topology = {.ranks_per_node = 2}},
      "", false, 1, {}, {{4, 2}, {4, 6}});
}

TEST_CASE("momenta of each rank, and copies by differences, keep their mean") {
  check(ErrorFeedbackSgd<ScaledSign<MeanAbs>, LocalMomentumBefore>{.learning_rate = 0.05F}, "momentum");
  check(Ef21Sgd<TopK<>, HeavyBall>{
      .learning_rate = 0.05F, .warmup_steps = 3, .compressor = {.selection = {.ratio = 0.2}}});
  check(Ef21Sgdm<TopK<>>{.learning_rate = 0.05F,
                         .warmup_steps = 3,
                         .momentum_correction = {.eta = 0.3F},
                         .compressor = {.selection = {.ratio = 0.2}}},
        "momentum");
}

namespace {

/// The largest loss of 40 steps of a model that has come to rest, on as many ranks as before and on others. Of curvatures
/// between 1 and `least`, and noise of each rank in proportion.
struct Peaks {
  double as_before = 0, with_others = 0;
};
template <class R>
Peaks peaks(const R& recipe, float least, int from, int to) {
  const Scratch scratch;
  Layout layout;
  layout.add({"w", {20, 40}});
  const auto curvature = [&](std::size_t i) {
    return std::pow(least, 0.5F + 0.5F * noise(3, 0, 0, static_cast<index_t>(i)));
  };
  const auto train = [&](auto& optimizer, Floats& x, int steps) {
    double peak = 0;
    Floats g(x.size());
    for (int k = 0; k < steps; ++k) {
      double loss = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float own = 0.2F * noise(7, optimizer.rank(), optimizer.steps(), static_cast<index_t>(i));
        g[i] = curvature(i) * (x[i] + own);
        loss += static_cast<double>(curvature(i) * x[i] * x[i]) / 2;
      }
      peak = std::max(peak, loss);
      optimizer.step(x, g);
    }
    return peak;
  };
  Peaks found;
  ThreadGroup(from, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    train(optimizer, x, 360);
    checkpoint::Folder(scratch.path(), transport).save(optimizer, x);
    const double peak = train(optimizer, x, 40);
    if (transport.rank() == 0) found.as_before = peak;
  });
  ThreadGroup(to, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    checkpoint::Folder(scratch.path(), transport).load(optimizer, x, Elastic::yes);
    const double peak = train(optimizer, x, 40);
    if (transport.rank() == 0) found.with_others = peak;
  });
  return found;
}

}  // namespace

TEST_CASE("no loss rises because other ranks go on") {
  // Noise alone lets it rise as the number of ranks falls; ranks that all begin with the same errors, 1.9 to 3 times as much.
  const auto rests = [](const Peaks& found, double fewer) {
    CAPTURE(found.as_before);
    CAPTURE(found.with_others);
    CHECK(found.with_others < 1.25 * fewer * found.as_before);
  };
  const OneBitAdam<> one_bit_adam{.learning_rate = 0.01F, .preconditioner = {.freeze = AtStep{100}}};
  rests(peaks(one_bit_adam, 0.01F, 4, 3), 4.0 / 3);
  rests(peaks(one_bit_adam, 0.01F, 4, 8), 1);
  const TopK<> top{.selection = {.ratio = 0.05}};
  const Ef21Sgd<TopK<>, HeavyBall> ef21{.learning_rate = 0.02F, .warmup_steps = 3, .compressor = top};
  rests(peaks(ef21, 1, 4, 3), 4.0 / 3);
  rests(peaks(ef21, 1, 4, 8), 1);
  rests(peaks(EControl<TopK<>>{.learning_rate = 0.02F, .warmup_steps = 3, .compressor = top}, 1, 4, 8), 1);
}

TEST_CASE("models of each rank go on from their mean") {
  check(LocalSgd<MomentumSgd<>>{.inner = {.learning_rate = 0.05F}, .period = 4}, "inner_momentum", true);
  check(DmSgd<Mixing<graph::Ring>>{.learning_rate = 0.05F}, "momentum", true);
}

TEST_CASE("the same number of ranks loads the bits that it has saved, errors included") {
  const Scratch scratch;
  const World saved = save(one_bit, 3, scratch.path());
  const World found = load(one_bit, 3, scratch.path());
  for (std::size_t rank = 0; rank < saved.size(); ++rank) {
    CHECK(found[rank].x == saved[rank].x);
    CHECK(found[rank].state.parts == saved[rank].state.parts);
  }
}

TEST_CASE("what another number of ranks can't take up is refused by all, and nothing has changed") {
  const Scratch scratch;
  const World untouched =
      on_ranks(one_bit, 3, {}, [](Threads&, auto& optimizer, Floats& x, Rank&) { train(optimizer, x, 2); });
  const auto refused = [&](const World& world, const std::string& why, bool foreign,
                           bool same_slices = true) {
    for (std::size_t rank = 0; rank < world.size(); ++rank) {
      contains(world[rank].error, why);
      CHECK(world[rank].foreign == foreign);
      CHECK(world[rank].x == untouched[rank].x);
      if (same_slices) CHECK(world[rank].state.parts == untouched[rank].state.parts);
    }
  };
  save(one_bit, 4, scratch.path(), 13);
  refused(load(one_bit, 3, scratch.path(), Elastic::no),
          "was saved by 4 ranks, and this run has 3: start as many, or load it with checkpoint::Elastic::yes",
          true);
  refused(load(one_bit, 3, scratch.path(), Elastic::yes, Options{.seed = 5}), "another seed", true);
  refused(load(one_bit, 3, scratch.path(), Elastic::yes, Options{.slice_bytes = 2048}),
          "with this number of ranks and these settings there are", true, false);
  // Whole, and of this step, but of another save: only the manifest knows.
  const Scratch other;
  OneBitAdam<> faster = one_bit;
  faster.learning_rate = 0.06F;
  save(faster, 4, other.path(), 13);
  const fs::path last = fs::path("step-00000013") / checkpoint::rank_file(3, 4);
  fs::copy_file(other.path() / last, scratch.path() / last, fs::copy_options::overwrite_existing);
  refused(load(one_bit, 3, scratch.path()), "of another save than step 13", false);
  flip_last(scratch.path() / last);
  refused(load(one_bit, 3, scratch.path()), "rank-3-of-4.safetensors", false);
}

TEST_CASE("codes have no mean: errors in 8 bits stay what they are, or with their ranks") {
  const Scratch scratch;
  const ErrorFeedbackSgd<ScaledSign<MeanAbs, PerBlock<64>>, Int8Residual> recipe{.learning_rate = 0.05F};
  const World saved = save(recipe, 4, scratch.path());
  const World twice = load(recipe, 8, scratch.path());
  for (std::size_t rank = 0; rank < twice.size(); ++rank) {
    CHECK(twice[rank].error == "");
    for (const char* part : {"error", "error_scales"})
      CHECK(twice[rank].state.parts.at(part) == saved[rank % 4].state.parts.at(part));
  }
  CHECK_FALSE(saved[0].state.parts.at("error") == saved[1].state.parts.at("error"));
  for (const Rank& rank : load(recipe, 3, scratch.path())) {
    contains(rank.error, "has another \"state.error\" than a rank before it. These are counts or codes");
    contains(rank.error, "continue with 4 ranks, or with a multiple of 4");
    CHECK(rank.foreign);
  }
}

TEST_CASE("files of different saves are no checkpoint of all ranks") {
  const Scratch one, other;
  save(one_bit, 2, one.path(), 12);
  save(one_bit, 2, other.path(), 13);
  const auto file = [](const Scratch& scratch, const std::string& step, int rank) {
    return scratch.path() / ("step-000000" + step) / checkpoint::rank_file(rank, 2);
  };
  on_ranks(one_bit, 3, {}, [&](Threads&, auto& optimizer, Floats& x, Rank&) {
    CHECK_THROWS_WITH_AS(checkpoint::load_elastic({file(one, "12", 0), file(other, "13", 1)}, optimizer, x),
                         doctest::Contains("is of step 13, that of rank 0 of step 12"), checkpoint_error);
    CHECK_THROWS_WITH_AS(checkpoint::load_elastic({file(one, "12", 1), file(one, "12", 0)}, optimizer, x),
                         doctest::Contains("another rank"), checkpoint_error);
    CHECK_THROWS_AS(checkpoint::load_elastic({}, optimizer, x), usage_error);
    CHECK(optimizer.steps() == 0);
    checkpoint::load_elastic({file(one, "12", 0), file(one, "12", 1)}, optimizer, x);
    CHECK(optimizer.steps() == 12);
  });
}

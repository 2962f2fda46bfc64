// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "mixing_support.hpp"
#include "reference/mixing.hpp"
#include "terse/checkpoint/checkpoint.hpp"
#include "terse/transport/mpi.hpp"

// Decentralized SGD over MPI, with any number of ranks up to eight: the bits of threads, and of a run that was
// interrupted.

using namespace terse;
using namespace terse::test;

namespace {

Mpi* world = nullptr;

constexpr std::uint64_t steps = 30;

template <class R, class T>
void advance(Optimizer<R, T>& optimizer, Floats& x, std::uint64_t until) {
  while (optimizer.steps() < until) {
    optimizer.recipe.learning_rate = warm_and_cool(optimizer.steps() + 1);
    take_step(optimizer, optimizer.rank(), x, true);
  }
}

/// The hash of this rank's parameters after all steps; with a file, after a rest in it half-way, from which another
/// optimizer goes on that has been elsewhere.
template <class R, class T>
std::string hash_of(const R& recipe, T& transport, const std::filesystem::path& file = {}) {
  const Layout layout = odd_sizes();
  Optimizer optimizer{recipe, transport, layout};
  Floats x = start(layout);
  if (file.empty()) {
    advance(optimizer, x, steps);
    return checkpoint::parameters_hash(layout, x);
  }
  advance(optimizer, x, steps / 2);
  checkpoint::save(file, optimizer, x);
  Optimizer resumed{recipe, transport, layout};
  Floats y(x.size(), 3.0F);
  advance(resumed, y, 4);
  checkpoint::load(file, resumed, y);
  CHECK(resumed.steps() == steps / 2);
  advance(resumed, y, steps);
  return checkpoint::parameters_hash(layout, y);
}

template <class R>
void check(const R& recipe) {
  CAPTURE(type_name<R>());
  CAPTURE(world->rank());
  const std::string over_mpi = hash_of(recipe, *world);
  // Each process plays all ranks once more, as threads.
  std::vector<std::string> threads(at(world->size()));
  ThreadGroup(world->size(), std::chrono::seconds(40)).run([&](Threads& transport) {
    threads[at(transport.rank())] = hash_of(recipe, transport);
  });
  CHECK(over_mpi == threads[at(world->rank())]);
  // Parameters differ between ranks, so that one of them for another would show.
  if (world->size() > 2) CHECK(threads[0] != threads[1]);
}

template <class R>
void check_resume(const R& recipe) {
  CAPTURE(type_name<R>());
  // Every rank has a file of its own, so one folder for each process will do.
  std::string folder = (std::filesystem::temp_directory_path() / "terse-mixing-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::string resumed = hash_of(recipe, *world, std::filesystem::path(folder) / "state.safetensors");
  CHECK(resumed == hash_of(recipe, *world));
  std::filesystem::remove_all(folder);
}

DecentLaM<Given> decentlam() {
  DecentLaM<Given> recipe{.weight_decay = 0.1F};
  recipe.topology.graph.weights = reference::ring(at(world->size()));
  return recipe;
}

}  // namespace

TEST_CASE("over MPI each rank ends with the bits that it has among threads") {
  check(decentlam());
  check(AwcDmSgd<>{.average_every = 4});
  check(MomentumTracking<>{});
  check(Matched{.average_every = 5, .topology = {{.seed = 3}}});
  check(StochasticGradientPush<graph::DirectedList>{
      .topology = {graph::PushSum<graph::DirectedList>{{one_way(world->size())}}}});
}

TEST_CASE("k steps, save, load and k steps give the bits of 2 k steps") {
  check_resume(decentlam());
  check_resume(MomentumTracking<>{});
  check_resume(Matched{.topology = {{.seed = 3}}});
}

int main(int argc, char** argv) {
  return Mpi::run(argc, argv, [&](Mpi& transport) {
    world = &transport;
    if (doctest::Context(argc, argv).run() != 0) throw error("a check has failed", transport.rank());
  });
}

// SPDX-License-Identifier: Apache-2.0
#include "resume.inc"

#include <unistd.h>

#include <random>

#include "terse/optimizer/d_sgd.hpp"
#include "terse/optimizer/local/overlap_local_sgd.hpp"

using namespace resume;

namespace {

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("terse-resume-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string slurp(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void spill(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// What rank `rank` is told when it loads, and whether its parameters and state are untouched afterwards.
struct Refusal {
  std::string what;
  bool untouched = false;
};

template <class R>
Refusal try_load(const R& recipe, Threads& transport, const std::filesystem::path& file,
                 const Options& options = {}, Layout layout = layers()) {
  Optimizer optimizer{recipe, transport, layout, options};
  Floats x = start(layout);
  train(optimizer, x, transport.rank(), 3);
  Seen before, after;
  optimizer.walk(before);
  const Floats kept = x;
  Refusal refusal;
  try {
    checkpoint::load(file, optimizer, x);
  } catch (const error& failure) {
    refusal.what = failure.what();
  }
  optimizer.walk(after);
  refusal.untouched = x == kept && before.parts == after.parts;
  return refusal;
}

}  // namespace

TEST_CASE("k steps, save, load and k steps give the bits of 2 k steps") {
  const Folder folder;
  for (const int ranks : {1, 3})
    ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
      check_all_recipes(transport, folder.path());
    });
}

TEST_CASE("a damaged file on one rank is refused by all, and nothing changes anywhere") {
  const Folder folder;
  const OneBitAdam<> recipe{.preconditioner = {.freeze = AtStep{10}}};
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = layers();
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    train(optimizer, x, transport.rank(), 12);
    checkpoint::save(file_of(folder.path(), transport.rank()), optimizer, x);
  });
  const std::string good = slurp(file_of(folder.path(), 1));
  REQUIRE(good.size() > 10'000);

  const auto refused_by_all = [&](const char* word0, const char* word1) {
    std::vector<Refusal> refusals(2);
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      refusals[at(transport.rank())] = try_load(recipe, transport, file_of(folder.path(), transport.rank()));
    });
    CAPTURE(refusals[0].what);
    CAPTURE(refusals[1].what);
    CHECK(refusals[0].what.find(word0) != std::string::npos);
    CHECK(refusals[1].what.find(word1) != std::string::npos);
    CHECK(refusals[0].untouched);
    CHECK(refusals[1].untouched);
  };
  std::mt19937 random(5);
  for (std::size_t k = 0; k < 100; ++k) {
    spill(file_of(folder.path(), 1), good.substr(0, k < 20 ? k : random() % good.size()));
    refused_by_all("rank 1 can't load its file", "checkpoint '");
  }
  for (int k = 0; k < 200; ++k) {
    std::string bad = good;
    // Half of them in the header, where fewer bytes mean more.
    const std::size_t byte = random() % (k % 2 == 0 ? 1500 : bad.size());
    bad[byte] = static_cast<char>(bad[byte] ^ (1 << random() % 8));
    spill(file_of(folder.path(), 1), bad);
    refused_by_all("rank 1 can't load its file", "checkpoint '");
  }
  std::filesystem::remove(file_of(folder.path(), 1));
  refused_by_all("rank 1 can't load its file", "cannot open");
  // Another rank's file, whole as it is.
  std::filesystem::copy_file(file_of(folder.path(), 0), file_of(folder.path(), 1));
  refused_by_all("rank 1 can't load its file", "another rank");
}

TEST_CASE("another world, recipe, seed, layout or step is refused in words") {
  const Folder folder;
  const OneBitAdam<> recipe{.preconditioner = {.freeze = AtStep{10}}};
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = layers();
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    train(optimizer, x, transport.rank(), 12);
    checkpoint::save(file_of(folder.path(), transport.rank()), optimizer, x);
  });
  const auto load = [&](const auto& other, int ranks, const Options& options, const Layout& layout) {
    std::vector<Refusal> refusals(at(ranks));
    ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
      refusals[at(transport.rank())] =
          try_load(other, transport, file_of(folder.path(), transport.rank()), options, layout);
    });
    CHECK(refusals[0].untouched == !refusals[0].what.empty());
    return refusals[0].what;
  };
  CHECK(load(recipe, 2, {}, layers()).empty());
  CHECK(load(recipe, 1, {}, layers()).find("another world: it says '2', this run '1'") != std::string::npos);
  CHECK(load(Adam<>{}, 2, {}, layers()).find("another recipe") != std::string::npos);
  CHECK(load(OneBitAdam<Sign, FrozenVariance, Ring>{}, 2, {}, layers()).find("another recipe") !=
        std::string::npos);
  CHECK(load(recipe, 2, {.seed = 9}, layers()).find("another seed") != std::string::npos);
  CHECK(load(recipe, 2, {}, Layout::flat(10)).find("another layout") != std::string::npos);

  // Rank 0 alone gets a later step.
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = layers();
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    train(optimizer, x, transport.rank(), 13);
    if (transport.rank() == 0) checkpoint::save(file_of(folder.path(), 0), optimizer, x);
  });
  CHECK(load(recipe, 2, {}, layers()).find("of step 12, this rank of step 13") != std::string::npos);
}

TEST_CASE("a save that fails leaves the old file whole") {
  const Folder folder;
  const auto file = file_of(folder.path(), 0);
  ThreadGroup(1).run([&](Threads& transport) {
    const Layout layout = layers();
    Optimizer optimizer{Adam<>{}, transport, layout};
    Floats x = start(layout);
    train(optimizer, x, 0, 2);
    checkpoint::save(file, optimizer, x);
    const std::string old = slurp(file);
    // The target can't be replaced: it is a folder that holds the old file.
    std::filesystem::rename(file, folder.path() / "kept");
    std::filesystem::create_directories(file);
    std::filesystem::rename(folder.path() / "kept", file / "kept");
    train(optimizer, x, 0, 2);
    CHECK_THROWS_AS(checkpoint::save(file, optimizer, x), checkpoint_error);
    CHECK(slurp(file / "kept") == old);
    // Nothing half-written lies about.
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  });
}

TEST_CASE("a load that one rank refuses completes a round under way, and training goes on") {
  const Folder folder;
  ThreadGroup(2, std::chrono::seconds(1)).run([&](Threads& transport) {
    const Layout layout = Layout::flat(100);
    const auto file = file_of(folder.path(), transport.rank());
    Optimizer optimizer{OverlapLocalSgd<MomentumSgd<>>{.period = 2}, transport, layout};
    Floats x = start(layout);
    const auto take_steps = [&](std::uint64_t until) {
      while (optimizer.steps() < until)
        optimizer.step(x, gradient(layout, transport.rank(), optimizer.steps() + 1, 8));
    };
    take_steps(2);
    checkpoint::save(file, optimizer, x);
    if (transport.rank() == 1) std::filesystem::remove(file);
    take_steps(4);
    const Floats kept = x;
    CHECK_THROWS_AS(checkpoint::load(file, optimizer, x), checkpoint_error);
    CHECK(x == kept);
    take_steps(8);
  });
}

TEST_CASE("save and load between begin and step are refused, and the step can be taken") {
  const Folder folder;
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = Layout::flat(100);
    const auto file = file_of(folder.path(), transport.rank());
    Optimizer optimizer{AwcDSgd<Mixing<graph::Ring>>{}, transport, layout};
    Floats x = start(layout);
    checkpoint::save(file, optimizer, x);
    optimizer.begin(x);
    const std::string refused = "begin has sent messages of the next step";
    CHECK_THROWS_WITH_AS(checkpoint::save(file, optimizer, x), doctest::Contains(refused.c_str()),
                         usage_error);
    CHECK_THROWS_WITH_AS(checkpoint::load(file, optimizer, x), doctest::Contains(refused.c_str()),
                         usage_error);
    optimizer.step(x, gradient(layout, transport.rank(), 1, 8));
    CHECK(optimizer.steps() == 1);
    checkpoint::load(file, optimizer, x);
    CHECK(optimizer.steps() == 0);
    CHECK(x == start(layout));
  });
}

TEST_CASE("a run whose segments were given other rates goes on with them, and is refused without") {
  const Folder folder;
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = layers();
    const OneBitAdam<> recipe{.preconditioner = {.freeze = AtStep{3}}};
    const auto file = file_of(folder.path(), transport.rank());
    Optimizer through{recipe, transport, layout, {.most_masked = 1}};
    Floats x = start(layout);
    train(through, x, transport.rank(), 2);
    through.rescale("v", 0.25F, 0);
    train(through, x, transport.rank(), 2);
    checkpoint::save(file, through, x);
    train(through, x, transport.rank(), 3);

    Optimizer resumed{recipe, transport, layout, {.most_masked = 1}};
    Floats y(at(layout.size()));
    CHECK_THROWS_WITH_AS(checkpoint::load(file, resumed, y), doctest::Contains("layout"), checkpoint_error);
    resumed.rescale("v", 0.25F, 0);
    checkpoint::load(file, resumed, y);
    train(resumed, y, transport.rank(), 3);
    CHECK(x == y);
  });
}

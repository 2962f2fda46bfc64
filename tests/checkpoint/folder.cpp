// SPDX-License-Identifier: Apache-2.0
#include "terse/checkpoint/folder.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoint/scratch.hpp"
#include "terse/terse.hpp"

// Checkpoints of a run below one folder: what ties their files together, what is taken where one is damaged, and what a
// kill or a full disk leaves.

namespace {

using namespace terse;
using terse::test::Scratch;
namespace fs = std::filesystem;

constexpr int ranks = 2;

std::string slurp(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void spill(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}
/// Changes one byte in the middle of what it holds from `from` on.
void flip(const fs::path& file, double where) {
  std::string bytes = slurp(file);
  REQUIRE_FALSE(bytes.empty());
  char& byte = bytes[static_cast<std::size_t>(where * static_cast<double>(bytes.size() - 1))];
  byte = static_cast<char>(byte ^ 1);
  spill(file, bytes);
}

/// A rank's training, whose parameters and step are enough to tell where it is.
struct Training {
  Layout layout = Layout::flat(320);
  std::vector<float> x = std::vector<float>(320), gradient = x;
  Optimizer<Adam<>, Threads> optimizer;

  explicit Training(Threads& transport, std::uint64_t seed = 0)
      : optimizer(Adam<>{.learning_rate = 0.01F}, transport, layout, Options{.seed = seed}) {}
  void run(std::uint64_t until) {
    while (optimizer.steps() < until) {
      for (std::size_t i = 0; i < x.size(); ++i)
        gradient[i] =
            x[i] - static_cast<float>((i + 1) * static_cast<std::size_t>(optimizer.rank() + 1) % 17);
      optimizer.step(x, gradient);
    }
  }
};

void on_ranks(const std::function<void(Threads&)>& program, int count = ranks) {
  ThreadGroup(count, std::chrono::seconds(20)).run(program);
}

/// Trains from the start, and saves after each of these steps.
void save_at(const fs::path& root, std::vector<std::uint64_t> steps, std::size_t kept = 9) {
  on_ranks([&](Threads& transport) {
    checkpoint::Folder folder(root, transport, checkpoint::Use::read_and_write, kept);
    Training training(transport);
    for (const std::uint64_t step : steps) {
      training.run(step);
      folder.save(training.optimizer, training.x, {{"position", "step " + std::to_string(step)}});
    }
  });
}

/// What ranks find when they load: the step that they go on from, 0 where that is none, and what they say.
struct Found {
  std::uint64_t step = 0;
  std::string position, skipped, error;
  bool foreign = false, untouched = false;
};
std::vector<Found> load(const fs::path& root, int count = ranks, std::uint64_t seed = 0) {
  std::vector<Found> all(static_cast<std::size_t>(count));
  on_ranks(
      [&](Threads& transport) {
        Found& mine = all[static_cast<std::size_t>(transport.rank())];
        Training training(transport, seed);
        training.run(3);
        const std::vector<float> before = training.x;
        try {
          checkpoint::Folder folder(root, transport, checkpoint::Use::read);
          if (const auto loaded = folder.load(training.optimizer, training.x)) {
            mine.step = training.optimizer.steps();
            mine.position = loaded->manifest.contents("position");
            CHECK(loaded->manifest.step() == mine.step);
            CHECK(loaded->manifest.world() == count);
            for (const std::string& why : loaded->skipped) mine.skipped += why + "\n";
          }
        } catch (const error& fault) {
          mine.error = fault.what();
          mine.foreign = dynamic_cast<const foreign_checkpoint_error*>(&fault) != nullptr;
        }
        mine.untouched = training.x == before && training.optimizer.steps() == 3;
      },
      count);
  return all;
}

bool contains(const std::string& text, const std::string& part) {
  INFO("the text: " << text);
  INFO("should have: " << part);
  const bool found = text.find(part) != text.npos;
  CHECK(found);
  return found;
}

fs::path rank_file(int rank) { return checkpoint::rank_file(rank, ranks); }

}  // namespace

TEST_CASE(
    "a run goes on from its newest checkpoint with the bits of one that never stopped, and keeps the newest "
    "two") {
  const Scratch scratch;
  on_ranks([&](Threads& transport) {
    Training whole(transport), resumed(transport);
    {
      checkpoint::Folder folder(scratch.path() / "state", transport);
      CHECK_FALSE(folder.load(whole.optimizer, whole.x));
      for (const std::uint64_t step : {4U, 8U, 12U}) {
        whole.run(step);
        folder.save(whole.optimizer, whole.x, {{"position", std::to_string(step)}});
      }
      barrier(transport);
    }
    barrier(transport);
    whole.run(20);
    checkpoint::Folder folder(scratch.path() / "state", transport);
    const auto loaded = folder.load(resumed.optimizer, resumed.x);
    REQUIRE(loaded);
    CHECK(loaded->manifest.contents("position") == "12");
    CHECK(loaded->skipped.empty());
    CHECK(loaded->manifest.parts().size() == ranks + 1);
    resumed.run(20);
    CHECK(resumed.x == whole.x);
  });
  CHECK(fs::exists(scratch.path() / "state" / "step-00000008" / "manifest.json"));
  CHECK(fs::exists(scratch.path() / "state" / "step-00000012" / "manifest.json"));
  CHECK(std::distance(fs::directory_iterator(scratch.path() / "state"), {}) == 3);  // and run.lock
}

TEST_CASE("files of one save belong together: whatever is changed, all ranks fall back on the one before") {
  const Scratch scratch;
  save_at(scratch.path(), {4, 8});
  const fs::path older = scratch.path() / "step-00000004", newest = scratch.path() / "step-00000008";
  CHECK(load(scratch.path())[0].position == "step 8");

  struct Damage {
    std::string file;
    std::function<void(const fs::path&)> work;
    std::string why;
  };
  const auto from_older = [&](const fs::path& file) {
    fs::copy_file(older / file.filename(), file, fs::copy_options::overwrite_existing);
  };
  const std::vector<Damage> damages{
      {rank_file(1), from_older, "of another save than step 8"},
      {rank_file(0), from_older, "of another save than step 8"},
      {rank_file(1), [](const fs::path& file) { flip(file, 0.9); }, "does not match its digest"},
      {rank_file(0), [](const fs::path& file) { flip(file, 0.1); }, "does not match its digest"},
      {rank_file(1), [](const fs::path& file) { fs::remove(file); }, "cannot open: No such file"},
      {rank_file(1), [](const fs::path& file) { fs::resize_file(file, 900); }, "rank-1-of-2.safetensors"},
      {"position", from_older, "of another save than step 8"},
      {"position", [](const fs::path& file) { flip(file, 0.5); }, "has the digest"},
      {"position", [](const fs::path& file) { spill(file, ""); }, "has 0 bytes, not 6"},
      {"position", [](const fs::path& file) { fs::remove(file); }, "cannot open: No such file"},
      {"manifest.json", from_older, "of another save than step 4"},
      {"manifest.json", [](const fs::path& file) { flip(file, 0.3); }, "manifest.json"},
      {"manifest.json", [](const fs::path& file) { flip(file, 0.7); }, "manifest.json"},
      {"manifest.json", [](const fs::path& file) { fs::resize_file(file, 40); }, "is damaged"},
      {"manifest.json", [](const fs::path& file) { fs::remove(file); }, "has no manifest.json"},
      {"manifest.json", [](const fs::path& file) { spill(file, ""); }, "manifest.json': is damaged"},
      {"manifest.json", [](const fs::path& file) { spill(file, std::string(1 << 20, '[')); }, "is damaged"},
      // Holes, which take no room on the disk: neither is hashed or held in memory.
      {"manifest.json", [](const fs::path& file) { fs::resize_file(file, std::uintmax_t{30} << 30); },
       "has 32212254720 bytes, more than any manifest"},
      {"position", [](const fs::path& file) { fs::resize_file(file, std::uintmax_t{4} << 40); },
       "has 4398046511104 bytes, not 6"},
      {rank_file(1), [](const fs::path& file) { fs::resize_file(file, std::uintmax_t{4} << 40); },
       "has 4398046511104 bytes, not "},
  };
  for (const Damage& damage : damages) {
    CAPTURE(damage.file);
    CAPTURE(damage.why);
    const std::string good = slurp(newest / damage.file);
    damage.work(newest / damage.file);
    for (const Found& found : load(scratch.path())) {
      CHECK(found.error.empty());
      CHECK(found.step == 4);
      CHECK(found.position == "step 4");
      contains(found.skipped, damage.why);
      contains(found.skipped, "step-00000008");
    }
    spill(newest / damage.file, good);
  }
  CHECK(load(scratch.path())[1].step == 8);

  // Where no older one is left, all ranks say what was wrong, and nothing has changed.
  flip(older / rank_file(0), 0.9);
  flip(newest / rank_file(1), 0.9);
  for (const Found& found : load(scratch.path())) {
    contains(found.error, "none of the checkpoints");
    contains(found.error, "rank 0: checkpoint '" + (older / rank_file(0)).string());
    contains(found.error, "rank 1: checkpoint '" + (newest / rank_file(1)).string());
    CHECK(found.untouched);
  }
}

TEST_CASE("sizes are compared before anything is hashed, those of all ranks' files before any rank's") {
  const Scratch scratch;
  on_ranks([&](Threads& transport) {
    checkpoint::Folder folder(scratch.path(), transport);
    for (const std::uint64_t step : {4U, 8U})
      folder.save(step, [&](checkpoint::Draft& draft) {
        draft.write("own-" + std::to_string(transport.rank()), "step " + std::to_string(step));
      });
  });
  const fs::path newest = scratch.path() / "step-00000008";
  // What rank 0 would hash is other bytes, of the same size; what is said is that rank 1's size is another one.
  spill(newest / "own-0", "other ");
  spill(newest / "own-1", "longer than it was");
  on_ranks([&](Threads& transport) {
    checkpoint::Folder folder(scratch.path(), transport, checkpoint::Use::read);
    const auto loaded = folder.load([](const checkpoint::Manifest&) {});
    REQUIRE(loaded);
    CHECK(loaded->manifest.step() == 4);
    REQUIRE(loaded->skipped.size() == 1);
    contains(loaded->skipped[0],
             "rank 1: checkpoint '" + (newest / "own-1").string() + "': has 18 bytes, not 6");
    CHECK_THROWS_WITH_AS(checkpoint::Manifest::read(newest).contents("own-1"),
                         doctest::Contains("has 18 bytes, not 6"), checkpoint_error);
  });
}

TEST_CASE("a folder stays where it is when the program goes to another one, and so does what it has loaded") {
  const Scratch scratch, elsewhere;
  const fs::path before = fs::current_path();
  struct Return {
    fs::path to;
    ~Return() { fs::current_path(to); }
  } const go_back{before};
  fs::current_path(scratch.path());
  on_ranks([&](Threads& transport) {
    Training training(transport);
    checkpoint::Folder folder("state", transport);
    training.run(4);
    folder.save(training.optimizer, training.x, {{"position", "4"}});
    const auto loaded = folder.load(training.optimizer, training.x);
    REQUIRE(loaded);
    const checkpoint::Manifest manifest = checkpoint::Manifest::read(fs::path("state") / "step-00000004");
    barrier(transport);
    fs::current_path(elsewhere.path());
    barrier(transport);
    training.run(8);
    folder.save(training.optimizer, training.x);
    CHECK(loaded->manifest.contents("position") == "4");
    CHECK(manifest.contents("position") == "4");
  });
  CHECK(elsewhere.names().empty());
  CHECK(fs::exists(scratch.path() / "state" / "step-00000008" / "manifest.json"));
}

TEST_CASE(
    "a manifest of no ranks, or with a file of a rank or a place that it can't have, is none, whatever its "
    "digest says") {
  const Scratch scratch;
  save_at(scratch.path(), {4, 8});
  const fs::path newest = scratch.path() / "step-00000008";
  const checkpoint::Manifest good = checkpoint::Manifest::read(newest);
  const auto forge = [&](int world, const std::function<void(checkpoint::Part&)>& change) {
    std::vector<checkpoint::Part> parts = good.parts();
    change(parts.back());
    spill(newest / "manifest.json", checkpoint::Manifest(newest, 8, world, parts).text());
  };
  const auto refused = [&](int world, const std::function<void(checkpoint::Part&)>& change) {
    forge(world, change);
    CHECK_THROWS_WITH_AS(checkpoint::Manifest::read(newest), doctest::Contains("manifest.json': is damaged"),
                         checkpoint_error);
    CHECK(load(scratch.path())[1].step == 4);
  };
  const auto as_it_was = [](checkpoint::Part&) {};
  for (const int world : {0, -1, 1}) refused(world, as_it_was);
  for (const int rank : {-1, ranks}) refused(ranks, [&](checkpoint::Part& part) { part.rank = rank; });
  for (const char* name :
       {"", ".", "..", "manifest.json", "../step-00000004/position", "/etc/passwd", "position/"})
    refused(ranks, [&](checkpoint::Part& part) { part.name = name; });
  // Numbers that no int holds.
  for (const char* number : {"1.5", "1e30", "-1e300", "4294967298", "18446744073709551616", "null"}) {
    std::string text = good.text();
    text.replace(text.find("\"world\": 2") + 9, 1, number);
    spill(newest / "manifest.json", text);
    CHECK_THROWS_WITH_AS(checkpoint::Manifest::read(newest), doctest::Contains("manifest.json': is damaged"),
                         checkpoint_error);
  }
  forge(ranks, as_it_was);
  CHECK(load(scratch.path())[1].step == 8);
}

TEST_CASE("a checkpoint of another run is refused, not skipped") {
  const Scratch scratch;
  save_at(scratch.path(), {4, 8});
  for (const Found& found : load(scratch.path(), 3)) {
    contains(found.error, "was saved by 2 ranks, and this run has 3");
    CHECK(found.foreign);
    CHECK(found.untouched);
  }
  for (const Found& found : load(scratch.path(), ranks, 5)) {
    contains(found.error, "another seed");
    CHECK(found.foreign);
    CHECK(found.untouched);
  }
}

TEST_CASE(
    "a checkpoint of another model names the first segment that differs, and what fits of it can be loaded") {
  const Scratch scratch;
  Layout saved;
  saved.add({"body", {3, 4}}).add({"none", {0}}).add({"head", {5, 4}}).add({"bias", {5}}).add({"old", {}});
  const fs::path file = scratch.path() / "file";
  const auto with = [&](const Layout& layout, const std::function<void(Optimizer<Adam<>, Threads>&)>& use) {
    ThreadGroup(1).run([&](Threads& transport) {
      Optimizer optimizer{Adam<>{}, transport, layout};
      use(optimizer);
    });
  };
  const auto numbers = [](const Layout& layout) {
    std::vector<float> x(static_cast<std::size_t>(layout.size()));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    return x;
  };
  with(saved, [&](auto& optimizer) { checkpoint::save(file, optimizer, numbers(saved)); });
  const auto refused = [&](const Layout& layout, const std::string& why) {
    with(layout, [&](auto& optimizer) {
      std::vector<float> x = numbers(layout);
      for (const bool elastic : {false, true}) try {
          elastic ? checkpoint::load_elastic({file}, optimizer, x) : checkpoint::load(file, optimizer, x);
          FAIL("loaded");
        } catch (const foreign_checkpoint_error& fault) {
          contains(fault.what(), "was saved with another layout: " + why);
        }
    });
  };
  const auto model = [](std::vector<Segment> segments) {
    Layout layout;
    for (Segment& segment : segments) layout.add(std::move(segment));
    return layout;
  };
  const Segment body{"body", {3, 4}}, none{"none", {0}}, head{"head", {5, 4}}, bias{"bias", {5}},
      old{"old", {}};
  refused(model({body, none, {"head", {7, 4}}, {"bias", {7}}, old}),
          "its segment \"head\" has the shape [5, 4] and this run's [7, 4]. load_matching");
  refused(model({{"first", {2}}, body, {"second", {2}}, none, head, bias, old}),
          "it has no segment \"first\" [2]. load_matching");
  refused(model({body, none, old}), "this run has no segment \"head\" [5, 4]. load_matching");
  refused(model({{"bodies", {3, 4}}, none, head, bias, old}),
          "it has no segment \"bodies\" [3, 4], this run has no segment \"body\" [3, 4]. load_matching");
  refused(model({none, body, head, bias, old}), "segments have the same names and shapes, and another order");
  refused(model({{"body", {3, 4}, 0.5F}, none, head, bias, old}), "segments have the same names and shapes");

  using Names = std::vector<std::string>;
  const Layout other = model({{"new", {2}}, {"bias", {7}}, {"head", {5, 4}, 2}, none, body});
  std::vector<float> x(static_cast<std::size_t>(other.size()), -1);
  const checkpoint::Unmatched unmatched = checkpoint::load_matching(file, other, x);
  CHECK(unmatched.missing == Names{"new"});
  CHECK(unmatched.unexpected == Names{"old"});
  CHECK(unmatched.mismatched == Names{"bias"});
  std::vector<float> expected(x.size(), -1);
  for (const auto& [to, from, count] :
       {std::tuple(other.segments()[2].offset, saved.segments()[2].offset, 20),
        std::tuple(other.segments()[4].offset, saved.segments()[0].offset, 12)})
    for (index_t i = 0; i < count; ++i)
      expected[static_cast<std::size_t>(to + i)] = static_cast<float>(from + i);
  CHECK(x == expected);

  // Of other numbers nothing fits; a damaged file and one of something else change nothing.
  std::vector<bf16> halves(x.size());
  CHECK(checkpoint::load_matching(file, saved, view<bf16>(halves).part(0, saved.size())).mismatched ==
        Names{"body", "none", "head", "bias", "old"});
  flip(file, 0.99);
  CHECK_THROWS_AS(checkpoint::load_matching(file, other, x), checkpoint_error);
  checkpoint::write(file, {}, {{"format", "mine"}});
  CHECK_THROWS_WITH_AS(checkpoint::load_matching(file, other, x), doctest::Contains("its format is 'mine'"),
                       foreign_checkpoint_error);
  CHECK_THROWS_WITH_AS(checkpoint::load_matching(file, Layout::flat(7), x),
                       doctest::Contains("needs parameters"), checkpoint_error);
  CHECK(x == expected);
}

TEST_CASE("one rank's file of another run is that to all ranks") {
  const Scratch scratch;
  on_ranks([&](Threads& transport) {
    Training training(transport);
    const fs::path own = scratch.path() / std::to_string(transport.rank());
    checkpoint::save(own, training.optimizer, training.x);
    barrier(transport);
    CHECK_THROWS_AS(checkpoint::load(scratch.path() / "0", training.optimizer, training.x),
                    foreign_checkpoint_error);
  });
}

TEST_CASE("what was skipped is set aside by the next save, and a later step that was not loaded stays") {
  const Scratch scratch;
  save_at(scratch.path(), {4, 8});
  flip(scratch.path() / "step-00000008" / rank_file(1), 0.9);
  on_ranks([&](Threads& transport) {
    Training training(transport);
    checkpoint::Folder folder(scratch.path(), transport);
    training.run(2);
    CHECK_THROWS_WITH_AS(folder.save(training.optimizer, training.x),
                         doctest::Contains("is of a later step than 2"), checkpoint_error);
    REQUIRE(folder.load(training.optimizer, training.x));
    CHECK(training.optimizer.steps() == 4);
    folder.save(training.optimizer, training.x);  // of the same step once more
    training.run(8);
    folder.save(training.optimizer, training.x, {{"position", "again"}});
  });
  CHECK(scratch.names() ==
        std::set<std::string>{"run.lock", "step-00000004.2", "step-00000008", "step-00000008.skipped"});
  CHECK(load(scratch.path())[0].position == "again");
}

TEST_CASE("a rank that can't write keeps all from saving, and the old checkpoints stay") {
  const Scratch scratch;
  save_at(scratch.path(), {4});
  std::vector<std::string> words(ranks);
  on_ranks([&](Threads& transport) {
    Training training(transport);
    training.run(8);
    checkpoint::Folder folder(scratch.path(), transport);
    try {
      folder.save(8, [&](checkpoint::Draft& draft) {
        draft.write("own-" + std::to_string(transport.rank()), "small");
        // A disk that is full, on one rank.
        if (transport.rank() == 1) fs::create_symlink("/dev/full", draft.file("rank-1.safetensors"));
        checkpoint::save(draft.file("rank-" + std::to_string(transport.rank()) + ".safetensors"),
                         training.optimizer, training.x);
      });
    } catch (const checkpoint_error& fault) {
      words[static_cast<std::size_t>(transport.rank())] = fault.what();
    }
    CHECK_THROWS_WITH_AS(folder.save(8, [](checkpoint::Draft& draft) { draft.write("same", "name"); }),
                         doctest::Contains("two files named \"same\""), checkpoint_error);
    CHECK_THROWS_WITH_AS(folder.save(8, [](checkpoint::Draft& draft) { draft.write("../other", "name"); }),
                         doctest::Contains("can't be the name"), usage_error);
  });
  contains(words[1], "cannot write: No space left on device");
  contains(words[0], "rank 1 failed: checkpoint");
  contains(words[0], "cannot write: No space left on device");
  CHECK(scratch.names() == std::set<std::string>{"run.lock", "step-00000004"});
  CHECK(load(scratch.path())[0].step == 4);
}

TEST_CASE("a rank that saves or opens a folder alone waits for ranks that wait for it, and all are told so") {
  for (const bool opens : {false, true}) {
    const Scratch scratch;
    std::vector<std::string> words(ranks);
    CHECK_THROWS_AS(ThreadGroup(ranks, std::chrono::milliseconds(200)).run([&](Threads& transport) {
      try {
        Training training(transport);
        checkpoint::Folder folder(scratch.path(), transport);
        training.run(2);
        if (transport.rank() == 0 && opens) checkpoint::Folder(scratch.path() / "other", transport);
        if (transport.rank() == 0) folder.save(training.optimizer, training.x);
        training.run(3);
      } catch (const peer_error& fault) {
        CHECK(fault.culprit() == -1);
        words[static_cast<std::size_t>(transport.rank())] = fault.what();
        throw;
      }
    }),
                    const peer_error&);
    const std::string call = opens ? "the opening of a folder" : "a save";
    for (const std::string& text : words) {
      contains(text, "ranks 0 and 1 wait for each other, so that rank ");
      contains(text, "rank 0 for rank 1 in phase 'setup' of " + call +
                         " on channel 0, rank 1 for rank 0 in phase "
                         "'reduce' of step 3 on channel ");
    }
  }
}

TEST_CASE("a folder belongs to one run at a time, which is named; a dead one's lock is gone") {
  const Scratch scratch;
  const auto refusal = [&] {
    std::string words;
    try {
      const checkpoint::RunLock second(scratch.path() / "state");
    } catch (const folder_in_use_error& fault) {
      words = fault.what();
    }
    return words;
  };
  {
    const checkpoint::RunLock first(scratch.path() / "state");
    const std::string words = refusal();
    contains(words, "is in use by process " + std::to_string(::getpid()) + " on ");
    contains(words, "UTC: wait until that run ends");
    on_ranks([&](Threads& transport) {
      CHECK_THROWS_AS(checkpoint::Folder(scratch.path() / "state", transport), folder_in_use_error);
      CHECK_NOTHROW(checkpoint::Folder(scratch.path() / "state", transport, checkpoint::Use::read));
    });
  }
  CHECK(refusal().empty());
  const pid_t child = ::fork();
  if (child == 0) {
    const checkpoint::RunLock lock(scratch.path() / "state");
    ::raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  contains(slurp(scratch.path() / "state" / "run.lock"), "process " + std::to_string(child));
  CHECK(refusal().empty());
}

TEST_CASE("a lock is taken on a file of its own alone, and what stands in its place is left as it is") {
  const Scratch scratch;
  const fs::path state = scratch.path() / "state", lock = state / "run.lock",
                 precious = scratch.path() / "precious";
  fs::create_directories(state);
  const std::string words = "years of work, no lock\n";
  const auto refused = [&](const std::string& why) {
    CHECK_THROWS_WITH_AS(checkpoint::RunLock{state}, doctest::Contains(why.c_str()), checkpoint_error);
    CHECK(slurp(precious) == words);
    fs::remove(lock);
  };
  spill(precious, words);
  fs::create_symlink("../precious", lock);
  refused("run.lock': is a link");
  fs::create_symlink("../not-there", lock);
  refused("run.lock': is a link");
  CHECK_FALSE(fs::exists(scratch.path() / "not-there"));
  fs::create_hard_link(precious, lock);
  refused("run.lock': is not a run's lock");
  // Whose first line is empty.
  spill(lock, "\n" + words);
  CHECK_THROWS_WITH_AS(checkpoint::RunLock{state}, doctest::Contains("not a run's lock"), checkpoint_error);
  CHECK(slurp(lock) == "\n" + words);
  fs::remove(lock);
  REQUIRE(::mkfifo(lock.c_str(), 0600) == 0);
  refused("run.lock': is not a regular file");
  // What a run of a longer name has left is replaced.
  spill(lock, "process 1 on " + std::string(80, 'h') + " since then\n");
  const checkpoint::RunLock taken(state);
  const std::string text = slurp(lock);
  contains(text, "process " + std::to_string(::getpid()) + " on ");
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  CHECK(text.back() == '\n');
}

TEST_CASE(
    "a lock that a child of an ended run holds names that child, and none that exec has replaced holds it") {
  const Scratch scratch;
  // A run that takes the lock, starts a process that lives on, and ends. Returns both.
  const auto run = [&](bool exec) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t first = ::fork();
    if (first == 0) {
      const checkpoint::RunLock lock(scratch.path());
      const pid_t child = ::fork();
      if (child == 0) {
        if (exec) ::execlp("sleep", "sleep", "20", nullptr);
        ::alarm(20);
        ::pause();
        ::_exit(1);
      }
      static_cast<void>(!::write(ends[1], &child, sizeof child));
      ::_exit(0);
    }
    pid_t child = 0;
    REQUIRE(::read(ends[0], &child, sizeof child) == sizeof child);
    ::close(ends[0]);
    ::close(ends[1]);
    int status = 0;
    REQUIRE(::waitpid(first, &status, 0) == first);
    return std::pair(first, child);
  };
  const auto [first, child] = run(false);
  const std::string why = "is in use by process " + std::to_string(child) +
                          ", which holds the lock; run.lock names process " + std::to_string(first) + " on ";
  CHECK_THROWS_WITH_AS(checkpoint::RunLock{scratch.path()}, doctest::Contains(why.c_str()),
                       folder_in_use_error);
  ::kill(child, SIGKILL);
  const auto taken = [&] {
    try {
      const checkpoint::RunLock lock(scratch.path());
      return true;
    } catch (const folder_in_use_error&) {
      return false;
    }
  };
  const auto taken_soon = [&] {
    for (int wait = 0; wait < 400; ++wait) {
      if (taken()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  };
  CHECK(taken_soon());
  const pid_t replaced = run(true).second;
  CHECK(taken_soon());
  CHECK(::kill(replaced, SIGKILL) == 0);
}

TEST_CASE("a run that is killed at any moment leaves a whole checkpoint, the newest that was there") {
  const Scratch scratch;
  std::mt19937 random(7);
  std::uint64_t last = 0;
  for (int kill = 0; kill < 30; ++kill) {
    const pid_t child = ::fork();
    if (child == 0) {
      // Saves without end, each time a step further; says which are safe.
      try {
        on_ranks([&](Threads& transport) {
          Training training(transport);
          checkpoint::Folder folder(scratch.path(), transport);
          folder.load(training.optimizer, training.x);
          for (std::uint64_t step = training.optimizer.steps() + 1;; ++step) {
            training.run(step);
            folder.save(training.optimizer, training.x, {{"position", "step " + std::to_string(step)}});
            if (transport.rank() == 0) std::ofstream(scratch.path() / "safe") << step;
          }
        });
      } catch (const std::exception&) {
      }
      ::_exit(1);
    }
    // Not before it has come further, however busy the machine is.
    const auto safe_step = [&] {
      std::uint64_t step = 0;
      std::ifstream(scratch.path() / "safe") >> step;
      return step;
    };
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (safe_step() <= last && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    const std::uint64_t safe = safe_step();
    for (const Found& found : load(scratch.path())) {
      CHECK(found.error.empty());
      CHECK(found.skipped.empty());  // a kill damages nothing that looks whole
      CHECK(found.step >= std::max(safe, last));
      if (found.step > 0) CHECK(found.position == "step " + std::to_string(found.step));
    }
    last = load(scratch.path())[0].step;
  }
  CHECK(last >= 30);
}

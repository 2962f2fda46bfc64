// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "pipeline/device_stage.hpp"
#include "pipeline/support.hpp"
#include "terse/checkpoint/checkpoint.hpp"
#include "terse/checkpoint/folder.hpp"
#include "terse/checkpoint/pipeline.hpp"
#include "terse/device.hpp"
#include "terse/device/emulated.hpp"
#include "terse/optimizer/momentum_sgd.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/pipeline/mapped_memory.hpp"
#include "terse/transport/through_host.hpp"

// A pipeline and the optimizers of its stages, saved and resumed: the bits of a run that never stopped, or words of
// what is wrong and no change anywhere.

namespace {

using namespace terse;
using namespace terse::test;
using checkpoint::Examples;
namespace fs = std::filesystem;

using Changes = Uniform<4, Nearest, Asymmetric, MaxAbs, PerBlock<64>>;
using Gradients = Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<64>>;
template <class Memory>
using Policy = AcSgd<Changes, Gradients, Memory>;
using Direct = DirectActivations<Changes, Gradients>;

constexpr AnySchedule g_pipe{-1}, one_forward_one_backward{1};
constexpr index_t capacity = 24;

class Folder {
 public:
  Folder() {
    static int counter = 0;
    path_ = fs::temp_directory_path() /
            ("terse-pipeline-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

fs::path file_of(const fs::path& folder, const char* what, int stage) {
  return folder / (what + std::to_string(stage) + ".safetensors");
}
std::string slurp(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void spill(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::uint64_t id_of(std::uint64_t example) { return example * 1'000'000'000'003; }
/// Ten rows, three micro-batches: within five steps all examples come, and most come again.
Ids batch(std::uint64_t step) {
  Ids ids;
  for (std::uint64_t k = 0; k < 10; ++k) ids.push_back(id_of((7 * step + 5 * k) % capacity));
  if (step % 3 == 0) ids.back() = no_example;
  return ids;
}

/// What can be told of a stage. Copies are of those by example, wherever they stand.
struct Look {
  Floats parameters;
  Copies copies;
  std::uint64_t steps = 0, messages = 0;
  index_t kept = 0;
  bool torn = false;
  bool operator==(const Look&) const = default;
};

std::vector<index_t> widths(index_t narrowest = 64) { return {10, 66, narrowest, 70, 3}; }

/// A stage, its pipeline and its own optimizer.
template <class P>
class Training {
 public:
  Training(Threads& transport, const P& policy, AnySchedule schedule = g_pipe, std::uint64_t seed = 3,
           const std::vector<index_t>& layers = widths())
      : stage_(Layers::part(layers, transport.rank(), transport.size())),
        layout_(Layout::flat(static_cast<index_t>(stage_.parameters.size()))),
        own_(transport.split(transport.rank(), 0)),
        optimizer(MomentumSgd<>{.learning_rate = 0.05F}, own_, layout_),
        pipeline(policy, transport, stage_, {.micro_batch = 4, .seed = seed}, schedule),
        parameters(static_cast<std::size_t>(layout_.size())),
        gradients_(parameters.size()) {
    std::copy(stage_.parameters.begin(), stage_.parameters.end(), parameters.begin());
  }

  /// Appends losses of batches, and of evaluations between them.
  void train_until(std::uint64_t last) {
    while (pipeline.steps() < last) {
      std::copy_n(parameters.begin(), stage_.parameters.size(), stage_.parameters.begin());
      stage_.zero_gradients();
      losses.push_back(pipeline.train(batch(pipeline.steps() + 1)).loss);
      std::copy(stage_.gradients.begin(), stage_.gradients.end(), gradients_.begin());
      optimizer.step(parameters, gradients_);
      const std::uint64_t step = pipeline.steps();
      if (step == 3 || step == 5 || step == 7) pipeline.forget(Ids{id_of(2), id_of(step), id_of(11)});
      if (step % 2 == 0) losses.push_back(pipeline.evaluate(batch(step)));
    }
  }
  void save(const fs::path& folder, Examples examples = Examples::kept) {
    checkpoint::save(file_of(folder, "pipeline", pipeline.rank()), pipeline, examples);
    checkpoint::save(file_of(folder, "optimizer", pipeline.rank()), optimizer, parameters);
  }
  void load(const fs::path& folder) {
    checkpoint::load(file_of(folder, "pipeline", pipeline.rank()), pipeline);
    checkpoint::load(file_of(folder, "optimizer", pipeline.rank()), optimizer, parameters);
    losses.clear();
  }
  Look look() {
    Look look{parameters, copies_of(pipeline),        pipeline.steps(),
              0,          pipeline.examples().size(), pipeline.torn()};
    pipeline.walk([&](const std::string& name, std::uint64_t& value) {
      if (name == "messages") look.messages = value;
    });
    return look;
  }

 private:
  Layers stage_;
  Layout layout_;
  Threads own_;

 public:
  Optimizer<MomentumSgd<>, Threads> optimizer;
  Pipeline<P, Threads, Layers, AnySchedule> pipeline;
  Floats parameters;
  std::vector<double> losses;

 private:
  Floats gradients_;
};

struct End {
  Look look;
  std::vector<double> losses;  // of the second half
  bool operator==(const End&) const = default;
};

/// Five steps, a save, and five more steps.
template <class P>
std::vector<End> save_and_go_on(int stages, const P& policy, AnySchedule schedule, const fs::path& folder) {
  std::vector<End> ends(static_cast<std::size_t>(stages));
  on_stages(stages, [&](Threads& transport) {
    Training training(transport, policy, schedule);
    training.train_until(5);
    if (P::remembers) CHECK(training.pipeline.examples().size() < training.pipeline.examples().end());
    training.save(folder);
    training.losses.clear();
    training.train_until(10);
    training.pipeline.audit();
    ends[static_cast<std::size_t>(transport.rank())] = {training.look(), training.losses};
  });
  return ends;
}
/// `before` steps of another run, of which nothing shall stay; a load; five more steps.
template <class P>
std::vector<End> load_and_go_on(int stages, const P& policy, AnySchedule schedule, const fs::path& folder,
                                std::uint64_t before) {
  std::vector<End> ends(static_cast<std::size_t>(stages));
  on_stages(stages, [&](Threads& transport) {
    Training training(transport, policy, schedule);
    training.parameters.front() += 1;
    training.train_until(before);
    training.load(folder);
    CHECK(training.pipeline.steps() == 5);
    training.pipeline.audit();
    training.train_until(10);
    training.pipeline.audit();
    ends[static_cast<std::size_t>(transport.rank())] = {training.look(), training.losses};
  });
  return ends;
}

template <class One, class Other>
void check_resume(const One& one, const Other& other) {
  for (const int stages : {2, 4}) {
    CAPTURE(stages);
    const Folder first, second;
    const std::vector<End> through = save_and_go_on(stages, one, g_pipe, first.path());
    CHECK(save_and_go_on(stages, other, one_forward_one_backward, second.path()) == through);
    CHECK(through.front().losses.size() == 8);
    CHECK(load_and_go_on(stages, one, g_pipe, first.path(), 0) == through);
    CHECK(load_and_go_on(stages, other, one_forward_one_backward, first.path(), 2) == through);
    CHECK(load_and_go_on(stages, one, g_pipe, second.path(), 7) == through);
    CHECK(load_and_go_on(stages, other, one_forward_one_backward, second.path(), 8) == through);
  }
}
template <class Format>
void check_resume_of() {
  check_resume(
      Policy<InMemory<Format>>{.capacity = capacity},
      Policy<Mapped<Format>>{.capacity = capacity, .memory = {.folder = fs::temp_directory_path().string()}});
}

/// Rewrites a file with good digests. `change` may change everything.
struct Contents {
  std::vector<checkpoint::Tensor> tensors;
  std::vector<std::string> bytes;
  checkpoint::Metadata metadata;

  std::size_t place(const std::string& name) const {
    for (std::size_t k = 0; k < tensors.size(); ++k)
      if (tensors[k].name == name) return k;
    throw error("no tensor " + name);
  }
  template <class T = std::uint64_t>
  T* data(const std::string& name) {
    return reinterpret_cast<T*>(bytes[place(name)].data());
  }
};
void rewrite(const fs::path& file, const std::function<void(Contents&)>& change) {
  Contents contents;
  {
    const checkpoint::File read = checkpoint::File::read(file);
    contents.tensors = read.tensors();
    for (const checkpoint::Tensor& tensor : contents.tensors)
      contents.bytes.emplace_back(reinterpret_cast<const char*>(tensor.data), tensor.bytes);
    contents.metadata = read.metadata();
  }
  change(contents);
  for (std::size_t k = 0; k < contents.tensors.size(); ++k) {
    contents.tensors[k].data = reinterpret_cast<const std::byte*>(contents.bytes[k].data());
    contents.tensors[k].bytes = contents.bytes[k].size();
  }
  checkpoint::write(file, contents.tensors, contents.metadata);
}
/// The first slot that is somebody's, or with `free` nobody's.
std::size_t slot(Contents& contents, bool free = false) {
  std::size_t k = 0;
  while ((contents.data("examples.ids")[k] == no_example) != free) ++k;
  return k;
}

/// What became of a load: the exception's kind and words.
struct Outcome {
  enum class Kind { none, checkpoint, mismatch, usage, other } kind = Kind::none;
  std::string text;
};
template <class F>
Outcome outcome_of(F f) {
  using Kind = Outcome::Kind;
  try {
    f();
    return {};
  } catch (const checkpoint_error& failure) {
    return {Kind::checkpoint, failure.what()};
  } catch (const mismatch_error& failure) {
    return {Kind::mismatch, failure.what()};
  } catch (const usage_error& failure) {
    return {Kind::usage, failure.what()};
  } catch (const error& failure) {
    return {Kind::other, failure.what()};
  }
}
bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A folder of three files with something wrong, and what each stage shall say of it; empty: that it loads.
struct Fault {
  std::string name;
  Outcome::Kind own;  ///< of stages whose words are not "can't load its file"
  std::vector<std::string> words;
};

}  // namespace

TEST_CASE("5 steps, save, load and 5 steps give the bits of 10 steps: fp32") { check_resume_of<float>(); }
TEST_CASE("5 steps, save, load and 5 steps give the bits of 10 steps: fp16") { check_resume_of<fp16>(); }
TEST_CASE("5 steps, save, load and 5 steps give the bits of 10 steps: bf16") { check_resume_of<bf16>(); }
TEST_CASE("5 steps, save, load and 5 steps give the bits of 10 steps: int8") { check_resume_of<Int8>(); }
TEST_CASE("5 steps, save, load and 5 steps give the bits of 10 steps: no memory") {
  check_resume(Direct{}, Direct{});
}

TEST_CASE("one bad file: every stage throws, nothing changes, and training goes on") {
  using P = Policy<InMemory<fp16>>;
  using Kind = Outcome::Kind;
  const P policy{.capacity = capacity};
  const Folder folder;
  const fs::path good = folder.path() / "good", stale = folder.path() / "stale";
  std::vector<Look> through(3), old(3);
  const auto run = [&](auto use) {
    on_stages(3, [&](Threads& transport) { use(transport, static_cast<std::size_t>(transport.rank())); });
  };
  run([&](Threads& transport, std::size_t stage) {
    Training training(transport, policy);
    training.train_until(4);
    training.save(stale);
    training.train_until(5);
    training.save(good);
    training.save(folder.path() / "bare", Examples::left_out);
    old[stage] = training.look();
    training.train_until(10);
    through[stage] = training.look();
  });
  const auto other_run = [&](const char* name, const auto& other, std::uint64_t seed, index_t narrowest) {
    run([&](Threads& transport, std::size_t) {
      Training training(transport, other, g_pipe, seed, widths(narrowest));
      training.train_until(5);
      training.save(folder.path() / name);
    });
  };
  other_run("seed", policy, 4, 64);
  other_run("policy", Direct{}, 3, 64);
  other_run("format", Policy<InMemory<bf16>>{.capacity = capacity}, 3, 64);
  // Rows of as many bytes, but not of as many elements.
  other_run("elements", policy, 3, 63);
  on_stages(4, [&](Threads& transport) {
    Training training(transport, policy);
    training.train_until(5);
    training.save(folder.path() / "stages");
  });

  std::vector<Fault> faults;
  /// A copy of the good folder, changed.
  const auto add = [&](const std::string& name, Kind own, const std::vector<std::string>& words,
                       const std::function<void(const fs::path&)>& damage) {
    const fs::path to = folder.path() / name;
    fs::copy(good, to);
    damage(to);
    faults.push_back({name, own, words});
  };
  const auto file = [](const fs::path& of, int stage) { return file_of(of, "pipeline", stage); };
  const std::string victim = "stage 1 can't load its file";
  const auto replace = [&](const std::string& name, const std::string& words, const fs::path& by) {
    add(name, Kind::checkpoint, {victim, words, victim},
        [&](const fs::path& to) { fs::copy_file(by, file(to, 1), fs::copy_options::overwrite_existing); });
  };
  const auto edit = [&](const std::string& name, Kind own, const std::vector<std::string>& words,
                        const std::function<void(Contents&)>& change) {
    add(name, own, words, [&](const fs::path& to) { rewrite(file(to, 1), change); });
  };

  add("none", Kind::none, {"", "", ""}, [](const fs::path&) {});
  add("missing", Kind::checkpoint, {victim, "cannot open", victim},
      [&](const fs::path& to) { fs::remove(file(to, 1)); });
  const std::string bytes = slurp(file(good, 1));
  std::mt19937 random(5);
  for (int k = 0; k < 30; ++k)
    add("cut" + std::to_string(k), Kind::checkpoint, {victim, "checkpoint '", victim},
        [&](const fs::path& to) { spill(file(to, 1), bytes.substr(0, random() % bytes.size())); });
  for (int k = 0; k < 60; ++k)
    add("flip" + std::to_string(k), Kind::checkpoint, {victim, "checkpoint '", victim},
        [&](const fs::path& to) {
          std::string bad = bytes;
          // Half of them in the header, where fewer bytes mean more.
          char& byte = bad[random() % (k % 2 == 0 ? 1200 : bad.size())];
          byte = static_cast<char>(byte ^ (1 << random() % 8));
          spill(file(to, 1), bad);
        });
  add("first_missing", Kind::checkpoint,
      {"cannot open", "stage 0 can't load its file", "stage 0 can't load its file"},
      [&](const fs::path& to) { fs::remove(file(to, 0)); });
  add("swapped", Kind::checkpoint, {"stage '2', and this is '0'", "stage 0 can't", "stage '0'"},
      [&](const fs::path& to) {
        fs::rename(file(to, 0), to / "kept");
        fs::rename(file(to, 2), file(to, 0));
        fs::rename(to / "kept", file(to, 2));
      });
  replace("other_stage", "was saved with stage '0', and this is '1': each stage loads the file",
          file(good, 0));
  replace("other_seed", "was saved with seed '4', and this is '3'", file(folder.path() / "seed", 1));
  replace("other_policy", "was saved with policy 'whole", file(folder.path() / "policy", 1));
  replace("other_format", ", copies bf16', and this is 'whole", file(folder.path() / "format", 1));
  replace("other_elements", "elements '63', and this is '64': the model must be cut into the same",
          file(folder.path() / "elements", 1));
  add("other_input", Kind::checkpoint,
      {"stage 2 can't load its file", "stage 2 can't load its file", "input_elements '63', and this is '64'"},
      [&](const fs::path& to) {
        fs::copy_file(file(folder.path() / "elements", 2), file(to, 2), fs::copy_options::overwrite_existing);
      });
  replace("other_stages", "was saved with stages '4', and this is '3'", file(folder.path() / "stages", 1));
  replace("optimizer", "was saved with format 'terse checkpoint 1'", file_of(good, "optimizer", 1));
  add("old", Kind::mismatch,
      {"stage 1 has a checkpoint of step 4, this stage of step 5",
       "stage 0 has a checkpoint of step 5, this stage of step 4", "Load files of one save"},
      [&](const fs::path& to) {
        fs::copy_file(file(stale, 1), file(to, 1), fs::copy_options::overwrite_existing);
      });
  add("bare1", Kind::mismatch,
      {"stages 0 and 1 have copies of 21 and of 0 examples", "of 21 and of 0", "of 21 and of 0"},
      [&](const fs::path& to) {
        fs::copy_file(file(folder.path() / "bare", 1), file(to, 1), fs::copy_options::overwrite_existing);
      });

  edit("no_rows", Kind::checkpoint, {victim, "has no tensor \"examples.outgoing\"", victim},
       [](Contents& contents) {
         const auto k = static_cast<std::ptrdiff_t>(contents.place("examples.outgoing"));
         contents.tensors.erase(contents.tensors.begin() + k);
         contents.bytes.erase(contents.bytes.begin() + k);
       });
  edit("twice", Kind::checkpoint, {victim, "has impossible examples", victim}, [](Contents& contents) {
    std::uint64_t* const ids = contents.data("examples.ids");
    const std::size_t k = slot(contents);
    std::size_t next = k + 1;
    while (ids[next] == no_example) ++next;
    ids[next] = ids[k];
  });
  edit("own_step", Kind::checkpoint, {victim, "disagrees with itself about its step", victim},
       [](Contents& contents) { contents.metadata["step"] = "6"; });
  const std::string run_differs = "stages 0 and 1 are of the same step, but not of the same run";
  edit("other_run", Kind::mismatch, {run_differs, run_differs, run_differs},
       [](Contents& contents) { ++*contents.data("state.messages"); });
  const std::string ids_differ = "stages 0 and 1 have copies of different examples";
  edit("other_id", Kind::mismatch, {ids_differ, ids_differ, ids_differ},
       [](Contents& contents) { contents.data("examples.ids")[slot(contents)] = 77; });
  const std::string count_differs = "have copies of 21 and of 20 examples";
  edit("one_less", Kind::mismatch, {count_differs, count_differs, count_differs},
       [](Contents& contents) { contents.data("examples.ids")[slot(contents)] = no_example; });
  const std::string before = "stages 0 and 1 have different copies", behind = "stages 1 and 2 have different";
  const auto flip_row = [](const char* name, bool free) {
    return [name, free](Contents& contents) {
      const std::size_t k = slot(contents, free);
      const auto row = static_cast<std::size_t>(contents.tensors[contents.place(name)].shape[1]);
      contents.data<unsigned char>(name)[k * row + 5] ^= 1;
    };
  };
  edit("incoming", Kind::mismatch, {before, before, before}, flip_row("examples.incoming", false));
  edit("outgoing", Kind::mismatch, {behind, behind, behind}, flip_row("examples.outgoing", false));
  edit("free_row", Kind::none, {"", "", ""}, flip_row("examples.outgoing", true));
  edit("exchanged", Kind::mismatch, {before, before, before}, [](Contents& contents) {
    std::uint64_t* const ids = contents.data("examples.ids");
    const std::size_t k = slot(contents);
    std::size_t next = k + 1;
    while (ids[next] == no_example) ++next;
    std::swap(ids[next], ids[k]);
  });

  run([&](Threads& transport, std::size_t stage) {
    Training training(transport, policy);
    training.train_until(5);
    training.load(good);
    for (const Fault& fault : faults) {
      CAPTURE(fault.name);
      CAPTURE(stage);
      const Look kept = training.look();
      const fs::path mine = file(folder.path() / fault.name, static_cast<int>(stage));
      const Outcome outcome = outcome_of([&] { checkpoint::load(mine, training.pipeline); });
      CAPTURE(outcome.text);
      CHECK(outcome.kind == fault.own);
      CHECK(says(outcome.text, fault.words[stage]));
      if (outcome.kind != Kind::none) CHECK(says(outcome.text, mine.string()));
      const bool untouched = training.look() == kept;
      CHECK(untouched);
    }
    training.train_until(10);
    const bool same = training.look() == through[stage];
    CHECK(same);
    // The pipeline's file is none for the optimizer.
    const Outcome outcome = outcome_of([&] {
      checkpoint::load(file(good, static_cast<int>(stage)), training.optimizer, training.parameters);
    });
    CHECK(outcome.kind == Kind::checkpoint);
    CHECK(says(outcome.text, "another format: it says 'terse pipeline checkpoint 1'"));
    // What was refused above would have been taken by these.
    training.load(good);
    const bool back = training.look() == old[stage];
    CHECK(back);
  });
}

TEST_CASE("in a run's folder a stage's two files are of one save, or all stages load the one before") {
  const Policy<InMemory<fp16>> policy{.capacity = capacity};
  const Folder folder;
  on_stages(2, [&](Threads& transport) {
    const std::string stage = std::to_string(transport.rank());
    checkpoint::Folder run(folder.path(), transport);
    Training training(transport, policy);
    auto& pipeline = training.pipeline;
    auto& optimizer = training.optimizer;
    auto& parameters = training.parameters;
    std::vector<Look> looks;
    for (const std::uint64_t step : {5U, 7U}) {
      training.train_until(step);
      run.save(pipeline.steps(), [&](checkpoint::Draft& draft) {
        checkpoint::save(draft.file("pipeline-" + stage + ".safetensors"), pipeline);
        checkpoint::save(draft.file("optimizer-" + stage + ".safetensors"), optimizer, parameters);
      });
      looks.push_back(training.look());
    }
    const auto load = [&] {
      return run.load([&](const checkpoint::Manifest& manifest) {
        checkpoint::load(manifest.file("pipeline-" + stage + ".safetensors"), pipeline);
        checkpoint::load(manifest.file("optimizer-" + stage + ".safetensors"), optimizer, parameters);
      });
    };
    training.train_until(9);
    CHECK(load()->manifest.step() == 7);
    CHECK(training.look() == looks[1]);
    barrier(transport);
    if (transport.rank() == 1)
      fs::copy_file(folder.path() / "step-00000005/optimizer-1.safetensors",
                    folder.path() / "step-00000007/optimizer-1.safetensors",
                    fs::copy_options::overwrite_existing);
    const auto loaded = load();
    REQUIRE(loaded);
    CHECK(loaded->manifest.step() == 5);
    CHECK(loaded->skipped.at(0).find("of another save than step 7") != std::string::npos);
    CHECK(training.look() == looks[0]);
  });
}

TEST_CASE("without examples all come for the first time again") {
  const Policy<InMemory<fp16>> policy{.capacity = capacity};
  const Folder folder;
  on_stages(3, [&](Threads& transport) {
    const auto file = file_of(folder.path(), "pipeline", transport.rank());
    Training training(transport, policy);
    training.train_until(5);
    checkpoint::save(file, training.pipeline);
    const std::uintmax_t whole = fs::file_size(file);
    training.save(folder.path(), Examples::left_out);
    CHECK(fs::file_size(file) < 2000);
    // Slots times 8 bytes and a row for each boundary.
    const index_t in = training.pipeline.input_elements(), out = training.pipeline.output_elements();
    const index_t slot = 8 + (2 * in + 63) / 64 * 64 + (2 * out + 63) / 64 * 64;
    const auto slots = static_cast<std::uintmax_t>(training.pipeline.examples().end() * slot);
    CHECK(whole > slots);
    CHECK(whole < slots + 2000);

    Training resumed(transport, policy);
    resumed.train_until(2);
    resumed.load(folder.path());
    CHECK(resumed.pipeline.steps() == 5);
    CHECK(resumed.pipeline.examples().size() == 0);
    CHECK(resumed.parameters == training.parameters);
    CHECK(resumed.pipeline.train(batch(1)).fresh == 10);
    CHECK(resumed.pipeline.train(batch(1)).fresh == 0);
    CHECK(training.pipeline.train(batch(2)).fresh < 10);
    resumed.pipeline.audit();

    // The same as a run that forgets everything there.
    Training forgetful(transport, policy);
    forgetful.train_until(5);
    forgetful.pipeline.forget();
    forgetful.train_until(10);
    resumed.load(folder.path());
    resumed.train_until(10);
    const bool same = forgetful.look() == resumed.look();
    CHECK(same);
  });
}

TEST_CASE("a memory may be another size, as long as the copies fit") {
  const Folder folder;
  on_stages(2, [&](Threads& transport) {
    using P = Policy<InMemory<fp16>>;
    const auto file = file_of(folder.path(), "pipeline", transport.rank());
    Training training(transport, P{.capacity = 40});
    training.train_until(5);
    // Slots 21 and up would not fit without the free ones.
    CHECK(training.pipeline.examples().end() == 24);
    CHECK(training.pipeline.examples().size() == 21);
    checkpoint::save(file, training.pipeline);
    for (const index_t size : {21, 22, 100}) {
      Training resumed(transport, P{.capacity = size});
      checkpoint::load(file, resumed.pipeline);
      const bool same = copies_of(resumed.pipeline) == copies_of(training.pipeline);
      CHECK(same);
      CHECK(resumed.pipeline.examples().capacity() == size);
      resumed.pipeline.audit();
    }
    Training small(transport, P{.capacity = 20});
    const Outcome outcome = outcome_of([&] { checkpoint::load(file, small.pipeline); });
    CHECK(outcome.kind == Outcome::Kind::checkpoint);
    CHECK(says(outcome.text, "has copies of 21 examples, and there is a capacity of 20: raise it"));
  });
}

TEST_CASE("a torn pipeline is not saved, and a load mends it") {
  const Policy<InMemory<fp16>> policy{.capacity = capacity};
  const Folder folder;
  // Alone, so that nobody waits for what a step in its middle has not sent.
  on_stages(1, [&](Threads& transport) {
    const auto file = file_of(folder.path(), "pipeline", 0);
    Layers stage = Layers::part(widths(), 0, 1);
    Pipeline pipeline{policy, transport, stage, {.micro_batch = 4}};
    pipeline.train(batch(1));
    checkpoint::save(file, pipeline);
    const std::string kept = slurp(file);
    stage.on_output = [](const MicroBatch& rows, float*, index_t) {
      if (rows.index == 1) throw error("struck");
    };
    CHECK(says(outcome_of([&] { pipeline.train(batch(2)); }).text, "struck"));
    CHECK(pipeline.torn());
    stage.on_output = {};
    const Outcome outcome = outcome_of([&] { checkpoint::save(file, pipeline); });
    CHECK(outcome.kind == Outcome::Kind::usage);
    CHECK(says(outcome.text, "none to save to '" + file.string() + "': load a checkpoint, or forget()"));
    CHECK(slurp(file) == kept);
    checkpoint::load(file, pipeline);
    CHECK(!pipeline.torn());
    CHECK(pipeline.examples().size() == 10);
    pipeline.train(batch(2));
    CHECK(pipeline.steps() == 2);
  });
}

TEST_CASE("a batch that is refused leaves the next one as it was") {
  on_stages(2, [&](Threads& transport) {
    Training training(transport, Policy<InMemory<fp16>>{.capacity = 8});
    training.pipeline.train(Ids{1, 2, 3, 4, 5});
    const Look kept = training.look();
    CHECK(outcome_of([&] { training.pipeline.train(Ids{1, 2, 6, 2}); }).kind == Outcome::Kind::usage);
    CHECK(outcome_of([&] {
            training.pipeline.train(Ids{1, 2, 3, 4, 6, 7, 8, 9});
          }).kind == Outcome::Kind::usage);
    const bool untouched = training.look() == kept;
    CHECK(untouched);
    CHECK(training.pipeline.train(Ids{1, 2, 3, 4, 6}).fresh == 1);
  });
}

TEST_CASE("a device saves, a host loads, and the other way round") {
  using Device = executor::emulated;
  using P = Policy<InMemory<fp16>>;
  constexpr index_t elements = 100, micro_batch = 4;
  const Folder folder;
  const auto through = [&]<Executor E, class T>(T& transport, Toy<E>& toy, std::uint64_t steps,
                                                const fs::path& from, const fs::path& to) {
    Pipeline pipeline{P{.capacity = capacity}, transport, toy, {.micro_batch = micro_batch}, GPipe{}, E{}};
    if (!from.empty()) checkpoint::load(file_of(from, "", transport.rank()), pipeline);
    for (std::uint64_t k = 0; k < steps; ++k) {
      pipeline.train(batch(pipeline.steps() + 1));
      toy.descend(0.1F);
    }
    pipeline.forget(Ids{id_of(2), id_of(11)});
    if (!to.empty()) checkpoint::save(file_of(to, "", transport.rank()), pipeline);
    pipeline.audit();
  };
  on_stages(3, [&](Threads& transport) {
    const int rank = transport.rank(), stages = transport.size();
    ThroughHost<Threads, Device> staged(transport.split(0, rank), Device{});
    Toy<Device> device(Device{}, rank, stages, elements, micro_batch);
    Toy<executor::host> host({}, rank, stages, elements, micro_batch);
    const fs::path devices = folder.path() / "device", hosts = folder.path() / "host";
    through(staged, device, 5, {}, devices);
    through(transport, host, 5, {}, hosts);
    CHECK(slurp(file_of(devices, "", rank)) == slurp(file_of(hosts, "", rank)));
    CHECK(fs::file_size(file_of(devices, "", rank)) > 20 * 256);

    const fs::path devices_next = folder.path() / "device_next", hosts_next = folder.path() / "host_next";
    through(staged, device, 5, hosts, devices_next);
    through(transport, host, 5, devices, hosts_next);
    CHECK(device.weights() == host.weights());
    CHECK(slurp(file_of(devices_next, "", rank)) == slurp(file_of(hosts_next, "", rank)));

    // Neither has forgotten anything on the way.
    Toy<executor::host> again({}, rank, stages, elements, micro_batch);
    Pipeline pipeline{P{.capacity = capacity}, transport, again, {.micro_batch = micro_batch}};
    while (pipeline.steps() < 10) {
      pipeline.train(batch(pipeline.steps() + 1));
      again.descend(0.1F);
      if (pipeline.steps() == 5) pipeline.forget(Ids{id_of(2), id_of(11)});
    }
    CHECK(again.weights() == host.weights());
  });
}

// SPDX-License-Identifier: Apache-2.0

// Stops in the middle and goes on as if nothing had happened, to the bit; also from an older checkpoint where a file of the
// newest one was cut short.

#include "terse/checkpoint/folder.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

#include "terse/terse.hpp"

namespace {

constexpr int ranks = 3;
constexpr int half = 40;  // the variance freezes at step 30, so errors are under way in the newer checkpoint

/// A quadratic, its optimizer and the parameters of one rank.
struct Training {
  terse::Layout layout = terse::Layout::flat(10'000);
  std::vector<float> parameters = std::vector<float>(static_cast<std::size_t>(layout.size()));
  std::vector<float> gradients = parameters;
  terse::Optimizer<terse::OneBitAdam<>, terse::Threads> optimizer;

  explicit Training(terse::Threads& transport)
      : optimizer({.learning_rate = 0.01F, .preconditioner = {.freeze = terse::AtStep{30}}}, transport,
                  layout) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < parameters.size(); ++i)
        gradients[i] = parameters[i] -
                       static_cast<float>(1 + (i + 1) * static_cast<std::size_t>(optimizer.rank() + 1) % 17);
      optimizer.step(parameters, gradients);
    }
  }
  std::string hash() const { return terse::checkpoint::parameters_hash(layout, parameters); }
};

void require(bool fine, const char* what) {
  if (!fine) throw std::runtime_error(what);
}

void rank_program(terse::Threads& transport, const std::filesystem::path& directory) {
  terse::checkpoint::Folder folder(directory, transport);  // this run's alone

  Training uninterrupted(transport);
  for (int part = 0; part < 2; ++part) {
    uninterrupted.run(half / 2);
    folder.save(uninterrupted.optimizer, uninterrupted.parameters, {{"position", std::to_string(part)}});
  }
  uninterrupted.run(half);

  Training resumed(transport);
  const auto loaded = folder.load(resumed.optimizer, resumed.parameters);
  require(loaded && loaded->manifest.contents("position") == "1", "the newest checkpoint was not found");
  resumed.run(half);
  require(resumed.hash() == uninterrupted.hash(), "the resumed run went another way");
  if (transport.rank() == 0)
    std::printf("%d + %d steps with a restart and %d without: %s\n", half, half, 2 * half,
                resumed.hash().c_str());

  // Rank 1's file was cut short: all ranks go on from the checkpoint before.
  if (transport.rank() == 1) {
    const std::filesystem::path file = loaded->manifest.file(terse::checkpoint::rank_file(1, ranks));
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1000);
  }
  Training again(transport);
  const auto older = folder.load(again.optimizer, again.parameters);
  require(older && older->manifest.step() == half / 2, "no older checkpoint was loaded");
  if (transport.rank() == 0) std::printf("skipped %s\n", older->skipped.front().c_str());
  again.run(half / 2 + half);
  require(again.hash() == uninterrupted.hash(), "the run from the older checkpoint went another way");
}

}  // namespace

int main() {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / ("terse-checkpoint-example-" + std::to_string(getpid()));
  int status = EXIT_FAILURE;
  try {
    std::filesystem::create_directories(directory);
    terse::ThreadGroup(ranks).run([&](terse::Threads& transport) { rank_program(transport, directory); });
    status = EXIT_SUCCESS;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  return status;
}

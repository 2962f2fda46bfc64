// SPDX-License-Identifier: Apache-2.0

// Stops in the middle and goes on as if nothing had happened, to the bit; and refuses a file that was cut
// short.

#include "terse/checkpoint/checkpoint.hpp"

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
constexpr int half =
    40;  // the variance freezes at step 30, so errors are under way when the files are written

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
        gradients[i] =
            parameters[i] - static_cast<float>((i + 1) * static_cast<std::size_t>(optimizer.rank() + 1) % 17);
      optimizer.step(parameters, gradients);
    }
  }
  std::string hash() const { return terse::checkpoint::parameters_hash(layout, parameters); }
};

void require(bool fine, const char* what) {
  if (!fine) throw std::runtime_error(what);
}

void rank_program(terse::Threads& transport, const std::filesystem::path& directory) {
  // Each rank has its own state, such as the error it owes, and so its own file.
  const std::filesystem::path file =
      directory / ("rank-" + std::to_string(transport.rank()) + ".safetensors");

  Training uninterrupted(transport);
  uninterrupted.run(half);
  terse::checkpoint::save(file, uninterrupted.optimizer, uninterrupted.parameters);
  uninterrupted.run(half);

  Training resumed(transport);
  terse::checkpoint::load(file, resumed.optimizer, resumed.parameters);
  resumed.run(half);
  require(resumed.hash() == uninterrupted.hash(), "the resumed run went another way");
  if (transport.rank() == 0)
    std::printf("%d + %d steps with a restart and %d without: %s\n", half, half, 2 * half,
                resumed.hash().c_str());

  // A disk was full on one rank: all ranks refuse to load, and nothing changes on any.
  if (transport.rank() == 1) std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1000);
  const std::string before = resumed.hash();
  bool refused = false;
  try {
    terse::checkpoint::load(file, resumed.optimizer, resumed.parameters);
  } catch (const terse::checkpoint_error& fault) {
    refused = true;
    if (transport.rank() == 0) std::printf("refused: %s\n", fault.what());
  }
  require(refused, "a truncated file was loaded");
  require(resumed.hash() == before, "a truncated file changed the parameters");
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

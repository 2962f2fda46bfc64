// SPDX-License-Identifier: Apache-2.0

// Runs optimizers of full precision on two ranks with given gradients, for a comparison with other implementations. The file
// GRADIENTS has floats: n first parameters, then n gradients of rank 0 and n of rank 1 for each step. Writes the n parameters
// after each step to FOLDER/METHOD, for each method.
//
// Usage: trajectories GRADIENTS N FOLDER

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "terse/optimizer/adagrad.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/amsgrad.hpp"
#include "terse/optimizer/momentum_sgd.hpp"
#include "terse/optimizer/nadam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/optimizer/rms_prop.hpp"
#include "terse/transport/thread.hpp"

namespace {

struct Given {
  std::vector<float> numbers;
  std::size_t n;

  std::size_t steps() const { return (numbers.size() / n - 1) / 2; }
  const float* first() const { return numbers.data(); }
  const float* gradient(std::size_t step, int rank) const {
    return numbers.data() + (1 + 2 * step + static_cast<std::size_t>(rank)) * n;
  }
};

Given read(const std::string& path, std::size_t n) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto bytes = static_cast<std::size_t>(file.tellg());
  if (!file || n == 0 || bytes % (n * sizeof(float)) != 0 || bytes / (n * sizeof(float)) % 2 != 1)
    throw std::runtime_error(path + " does not have an odd number of rows of " + std::to_string(n) +
                             " floats");
  Given given{std::vector<float>(bytes / sizeof(float)), n};
  file.seekg(0);
  file.read(reinterpret_cast<char*>(given.numbers.data()), static_cast<std::streamsize>(bytes));
  if (!file) throw std::runtime_error(path + " could not be read");
  return given;
}

template <class Recipe>
void follow(const Recipe& recipe, const Given& given, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  const auto bytes = static_cast<std::streamsize>(given.n * sizeof(float));
  terse::ThreadGroup(2, std::chrono::seconds(60)).run([&](terse::Threads& transport) {
    terse::Layout layout;
    layout.add({"x", {static_cast<terse::index_t>(given.n)}});
    terse::Optimizer optimizer{recipe, transport, layout};
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x);
    std::copy_n(given.first(), given.n, x.begin());
    for (std::size_t step = 0; step < given.steps(); ++step) {
      std::copy_n(given.gradient(step, transport.rank()), given.n, g.begin());
      optimizer.step(x, g);
      if (transport.rank() == 0) file.write(reinterpret_cast<const char*>(x.data()), bytes);
    }
  });
  if (!file.flush()) throw std::runtime_error(path + " could not be written");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: trajectories GRADIENTS N FOLDER\n");
    return 2;
  }
  try {
    const Given given = read(argv[1], std::strtoull(argv[2], nullptr, 10));
    const std::string folder = std::string(argv[3]) + "/";
    follow(terse::Adam<>{}, given, folder + "adam");
    follow(terse::AdamW<>{.weight_decay = 0.1F}, given, folder + "adamw");
    follow(terse::Amsgrad<>{.weight_decay = 0.1F}, given, folder + "amsgrad");
    follow(terse::Nadam<>{}, given, folder + "nadam");
    follow(terse::Adagrad<>{}, given, folder + "adagrad");
    follow(terse::RmsProp<>{}, given, folder + "rms-prop");
    follow(terse::MomentumSgd<>{.learning_rate = 0.01F, .momentum_correction = {.momentum = 0.9F}}, given,
           folder + "momentum-sgd");
    follow(terse::MomentumSgd<>{.learning_rate = 0.01F,
                                .momentum_correction = {.momentum = 0.9F, .nesterov = true}},
           given, folder + "nesterov");
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "trajectories: %s\n", fault.what());
    return 1;
  }
}

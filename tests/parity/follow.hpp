// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/thread.hpp"

// Trajectories of terse's optimizers on two ranks with given gradients, for a comparison with other implementations.

namespace parity {

inline constexpr int ranks = 2;

/// Numbers of a file of floats: n first parameters, then for each step n gradients of rank 0 and n of rank 1.
struct Given {
  std::vector<float> numbers;
  std::size_t n;

  std::size_t steps() const { return (numbers.size() / n - 1) / ranks; }
  const float* first() const { return numbers.data(); }
  const float* gradient(std::size_t step, int rank) const {
    return numbers.data() + (1 + ranks * step + static_cast<std::size_t>(rank)) * n;
  }
};

inline Given read(const std::string& path, std::size_t n) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto bytes = static_cast<std::size_t>(file.tellg());
  if (!file || n == 0 || bytes % (n * sizeof(float)) != 0 || bytes / (n * sizeof(float)) % ranks != 1)
    throw std::runtime_error(path + " does not have an odd number of rows of " + std::to_string(n) +
                             " floats");
  Given given{std::vector<float>(bytes / sizeof(float)), n};
  file.seekg(0);
  file.read(reinterpret_cast<char*>(given.numbers.data()), static_cast<std::streamsize>(bytes));
  if (!file) throw std::runtime_error(path + " could not be read");
  return given;
}

inline void write(const std::string& path, const std::vector<float>& numbers) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(numbers.data()),
             static_cast<std::streamsize>(numbers.size() * sizeof(float)));
  if (!file.flush()) throw std::runtime_error(path + " could not be written");
}

/// Copies between consecutive numbers and the segments of an arena, which begin at multiples of 64.
template <class Copy>
void for_each_segment(const terse::Layout& layout, Copy copy) {
  std::size_t before = 0;
  for (const terse::Segment& segment : layout.segments()) {
    copy(before, static_cast<std::size_t>(segment.offset), static_cast<std::size_t>(segment.count));
    before += static_cast<std::size_t>(segment.count);
  }
}

/// Notes a buffer of the optimizer's state.
struct Note {
  std::string part;
  std::vector<float>& numbers;
  template <class View>
  void operator()(const std::string& name, const View& values, terse::index_t) const {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(*values.data())>, float>)
      if (name == part) numbers.assign(values.data(), values.data() + values.size());
  }
  void operator()(const std::string&, std::uint64_t&) const {}
};

/// Writes the parameters of both ranks after each step to `path`; the named buffer before the first step to `path`-start.
template <class Recipe>
void follow(const Recipe& recipe, const terse::Layout& layout, const Given& given, const std::string& path,
            const std::string& part = "") {
  std::vector<float> rows(given.steps() * ranks * given.n), start;
  terse::ThreadGroup(ranks, std::chrono::seconds(60)).run([&](terse::Threads& transport) {
    const int rank = transport.rank();
    terse::Optimizer optimizer{recipe, transport, layout};
    if (rank == 0 && !part.empty()) optimizer.walk(Note{part, start});
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x);
    for_each_segment(layout, [&](std::size_t before, std::size_t offset, std::size_t count) {
      std::copy_n(given.first() + before, count, x.begin() + static_cast<std::ptrdiff_t>(offset));
    });
    for (std::size_t step = 0; step < given.steps(); ++step) {
      for_each_segment(layout, [&](std::size_t before, std::size_t offset, std::size_t count) {
        std::copy_n(given.gradient(step, rank) + before, count,
                    g.begin() + static_cast<std::ptrdiff_t>(offset));
      });
      optimizer.step(x, g);
      float* row = rows.data() + (ranks * step + static_cast<std::size_t>(rank)) * given.n;
      for_each_segment(layout, [&](std::size_t before, std::size_t offset, std::size_t count) {
        std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(offset), count, row + before);
      });
    }
  });
  write(path, rows);
  if (!part.empty()) write(path + "-start", start);
}

/// Runs `program(given, folder)` with the arguments GRADIENTS N FOLDER.
template <class Program>
int main(int argc, char** argv, Program program) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s GRADIENTS N FOLDER\n", argv[0]);
    return 2;
  }
  try {
    program(read(argv[1], std::strtoull(argv[2], nullptr, 10)), std::string(argv[3]) + "/");
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s: %s\n", argv[0], fault.what());
    return 1;
  }
  return 0;
}

}  // namespace parity

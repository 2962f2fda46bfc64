// SPDX-License-Identifier: Apache-2.0
// Exact top-k selection against std::nth_element on a copy of the magnitudes, the copy included. nth_element
// finds the magnitude only; select_top writes the positions too.
//
//     select_speed [elements in Mi = 64] [rounds = 5] [data = all]

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "terse/executor/select.hpp"

namespace {

using terse::index_t;
using terse::executor::host;

/// A fixed number in (0, 1) for each i.
double uniform(std::uint64_t i) {
  i = (i + 1) * 0x9E3779B97F4A7C15U;
  i = (i ^ (i >> 30)) * 0xBF58476D1CE4E5B9U;
  i = (i ^ (i >> 27)) * 0x94D049BB133111EBU;
  i ^= i >> 31;
  return (static_cast<double>(i >> 12) + 0.5) * 0x1p-52;
}

double normal(std::uint64_t i) {
  return std::sqrt(-2 * std::log(uniform(2 * i))) * std::cos(6.283185307179586 * uniform(2 * i + 1));
}

double student_2(std::uint64_t i) {
  const double p = uniform(i);
  return (2 * p - 1) / std::sqrt(2 * p * (1 - p));
}

/// Rows of 1024 elements, each with a size of its own, as layers have.
double rows(std::uint64_t i) { return normal(i) * std::exp(normal(~(i / 1024))); }

/// One element in 200 is not 0: the k-th magnitude is 0 from k = 0.5 % on.
double sparse(std::uint64_t i) { return i % 200 == 0 ? normal(i) : 0; }

double constant(std::uint64_t) { return 0.5; }

/// The best of several rounds, in milliseconds.
struct Best {
  double ms = std::numeric_limits<double>::infinity();
  template <class Work>
  void round(Work work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;
    ms = std::min(ms, spent.count());
  }
};

struct Data {
  const char* name;
  double (*value)(std::uint64_t);
};

}  // namespace

int main(int argc, char** argv) {
  const index_t count = (argc > 1 ? std::atol(argv[1]) : 64) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const auto size = static_cast<std::size_t>(count);
  std::vector<float> values(size), copy(size);
  std::vector<float> scratch(static_cast<std::size_t>(terse::select_scratch(count, count / 2)));
  std::vector<std::uint32_t> positions(size / 2);

  std::printf("%ld Mi elements, best of %d rounds\n", static_cast<long>(count >> 20), rounds);
  std::printf("%-10s %6s %12s %12s %12s %8s %8s\n", "data", "k", "one pass ms", "nth ms", "select ms", "GB/s",
              "times");
  for (const Data data : {Data{"normal", normal}, Data{"uniform", uniform}, Data{"student2", student_2},
                          Data{"rows", rows}, Data{"sparse", sparse}, Data{"constant", constant}}) {
    if (argc > 3 && std::strcmp(argv[3], data.name) != 0) continue;
    for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<float>(data.value(i));
    for (const double share : {0.001, 0.01, 0.1, 0.5}) {
      const auto k = static_cast<index_t>(share * static_cast<double>(count));
      Best pass, nth, select;
      float threshold = 0;
      for (int round = 0; round < rounds; ++round) {
        pass.round([&] { terse::select_above(host{}, values, 0x1p127F, positions); });
        nth.round([&] {
          for (std::size_t i = 0; i < size; ++i) copy[i] = std::fabs(values[i]);
          std::nth_element(copy.begin(), copy.begin() + (k - 1), copy.end(), std::greater<>());
          threshold = copy[static_cast<std::size_t>(k - 1)];
        });
        select.round([&] { terse::select_top(host{}, values, k, scratch, positions); });
      }
      float smallest = std::numeric_limits<float>::infinity();
      for (index_t i = 0; i < k; ++i)
        smallest = std::min(smallest, std::fabs(values[positions[static_cast<std::size_t>(i)]]));
      if (smallest != threshold) {
        std::fprintf(stderr, "selection and nth_element disagree: %g, %g\n", smallest, threshold);
        return 1;
      }
      std::printf("%-10s %5.1f%% %12.1f %12.1f %12.1f %8.2f %8.1f\n", data.name, 100 * share, pass.ms, nth.ms,
                  select.ms, 4e-6 * static_cast<double>(count) / select.ms, nth.ms / select.ms);
      std::fflush(stdout);
    }
  }
  return 0;
}

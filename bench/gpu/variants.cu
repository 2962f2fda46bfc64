// SPDX-License-Identifier: Apache-2.0
// The passes of 1-bit Adam and Adam under several tunings of the kernels, in turns. To try others, change `Tried`.
//
//   bench_gpu_variants [ELEMENTS [ROUNDS [JSON]]]     268435456 and 10 unless given; JSON is a file

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "measure.hpp"
#include "stopwatch.cuh"

namespace {

using namespace terse;
using namespace terse::bench::gpu;

template <Tuning... tunings>
struct Variants {};

using Tried = Variants<Tuning{}, Tuning{.threads = 32}, Tuning{.threads = 128}, Tuning{.threads = 256},
                       Tuning{.rows = 1}, Tuning{.rows = 2}, Tuning{.rows = 4}, Tuning{.rows = 8},
                       Tuning{.rows = 4, .resident_blocks = 12}, Tuning{.few_tiles = 0},
                       Tuning{.few_tiles = std::int64_t{1} << 32}>;

std::string name_of(Tuning tuning) {
  std::string name = std::to_string(tuning.threads) + " threads";
  if (tuning.rows > 0) name += ", " + std::to_string(tuning.rows) + " rows";
  if (tuning.resident_blocks > 0) name += ", " + std::to_string(tuning.resident_blocks) + " resident";
  if (tuning.few_tiles != Tuning{}.few_tiles)
    name += tuning.few_tiles == 0 ? ", no tile few" : ", all tiles few";
  return name;
}

template <class T>
std::vector<T> brought(view<const T, memory::device> from) {
  std::vector<T> here(static_cast<std::size_t>(from.size()));
  download(from, view<T>(here));
  return here;
}

/// What the passes leave: a packet, parameters and momentum.
template <Tuning tuning>
auto leaves(index_t n) {
  const executor::tuned_cuda<tuning> ex;
  Rank<executor::cuda> rank(ex, n);
  OneBitPasses<Sign, executor::tuned_cuda<tuning>, executor::cuda> passes(ex, rank);
  passes.all();
  for_each(ex, rank.layout.range(), rank.adam());
  ex.synchronize();
  return std::tuple(brought(passes.packet()), brought(in<executor::cuda>(rank.x.all())),
                    brought(in<executor::cuda>(rank.m.all())));
}

template <Tuning tuning>
void add_lines(std::vector<Line>& lines, Rank<executor::cuda>& rank, index_t n) {
  using Ex = executor::tuned_cuda<tuning>;
  const Ex ex;
  const std::string name = name_of(tuning);
  const auto passes = std::make_shared<OneBitPasses<Sign, Ex, executor::cuda>>(ex, rank);
  const double stream = 4 * static_cast<double>(n), bits = stream / 32;
  lines.push_back({name, "x[i] *= a", 2 * stream, [=, &rank] {
                     for_each(ex, rank.layout.range(), Stretch{rank.v.data(), 1.0001F});
                   }});
  lines.push_back({name, "momentum + error + scale + bits", 4 * stream + bits, [=] { passes->measure(); }});
  lines.push_back({name, "bits into packets", 2 * bits, [=] { passes->encode(); }});
  lines.push_back({name, "decode + update", 4 * stream + bits, [=] { passes->update(); }});
  lines.push_back({name, "Adam", 7 * stream, [=, &rank] { for_each(ex, rank.layout.range(), rank.adam()); }});
}

template <Tuning first, Tuning... others>
int measure(Variants<first, others...>, index_t n, int rounds, const char* json) {
  const index_t few = 5 * 4096 + 130;
  const auto expected = leaves<first>(few);
  const bool alike[] = {true, leaves<others>(few) == expected...};
  for (const bool same : alike)
    if (!same) {
      std::fputs("bench_gpu_variants: tunings differ in their results; nothing was measured\n", stderr);
      return EXIT_FAILURE;
    }

  cudaDeviceProp device{};
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("%s\n", device.name);
  Stopwatch clock(device);
  Report report(clock, 2, rounds, "");
  const executor::cuda ex;
  Rank<executor::cuda> rank(ex, n);
  Floats<executor::cuda> other(n);
  std::vector<Line> lines{copy_line(ex, rank.g.data(), other.data(), n)};
  add_lines<first>(lines, rank, n);
  (add_lines<others>(lines, rank, n), ...);
  report.measure("variants", n, std::move(lines));
  if (json == nullptr) return EXIT_SUCCESS;
  return report.write(json, "\"device\": " + quoted(device.name)) ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("bench_gpu_variants: no CUDA device here: nothing was measured\n", stderr);
    return 77;
  }
  const index_t n = argc > 1 ? std::atoll(argv[1]) / 16384 * 16384 : 256 * mebi;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 10;
  if (argc > 4 || n <= 0 || rounds <= 0) {
    std::fputs("usage: bench_gpu_variants [ELEMENTS [ROUNDS [JSON]]]\n", stderr);
    return 2;
  }
  try {
    return measure(Tried{}, n, rounds, argc > 3 ? argv[3] : nullptr);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "bench_gpu_variants: %s\n", problem.what());
    return EXIT_FAILURE;
  }
}

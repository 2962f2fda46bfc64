// SPDX-License-Identifier: Apache-2.0
// Google Benchmark's main, which also notes what the figures belong to. bench/run makes tables and pictures of them.

#include <benchmark/benchmark.h>

#include <fstream>
#include <string>

namespace {

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::string compiler() {
#ifdef __clang__
  return __VERSION__;
#else
  return std::string("g++ ") + __VERSION__;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("processor", processor());
  benchmark::AddCustomContext("compiler", compiler() + " " TERSE_BENCH_FLAGS);
  return benchmark::RunSpecifiedBenchmarks() > 0 ? 0 : 1;
}

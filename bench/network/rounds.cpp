// SPDX-License-Identifier: Apache-2.0

// bench_rounds DEADLINE: ranks meet a hundred times a second, as long as they can, with a deadline of so many seconds. The job
// in which bench/network/cut cuts a rank off.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "terse/transport/mpi.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench_rounds DEADLINE\n");
    return 2;
  }
  const auto meet = [](terse::Mpi& transport) {
    for (long round = 0;; ++round) {
      terse::barrier(transport);
      if (round == 0 && transport.rank() == 0) {
        std::puts("all are there");
        std::fflush(stdout);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  return terse::Mpi::run(argc, argv, meet, std::chrono::milliseconds(std::atoi(argv[1]) * 1000));
}

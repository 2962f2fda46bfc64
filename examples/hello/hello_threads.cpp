// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "rank_program.hpp"

int main() {
  try {
    terse::ThreadGroup(4).run([](terse::Threads& transport) { rank_program(transport); });
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

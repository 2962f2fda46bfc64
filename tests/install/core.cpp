// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "terse/core/layout.hpp"
#include "terse/core/version.hpp"

// Compiles in a moment, for what builds it more than once: headers of the core, and threads to link.
int main() {
  std::thread([] {}).join();
  return terse::Layout::flat(100).size() >= 100 ? 0 : 1;
}

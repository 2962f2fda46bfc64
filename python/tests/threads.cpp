// SPDX-License-Identifier: Apache-2.0
// What test_optimizers.py's test of bits steps, over threads: prints each rank's hash.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/topology/ring.hpp"
#include "terse/transport/thread.hpp"

int main() {
  std::vector<std::uint64_t> hashes(4);
  terse::ThreadGroup(4).run([&](terse::Threads& transport) {
    terse::Layout layout;
    layout.add({"0.0", {9, 1000}});
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size());
    terse::Optimizer optimizer{
        terse::OneBitAdam<terse::Ring>{.preconditioner = {.freeze = terse::AtStep{15}}}, transport, layout};
    for (int step = 1; step <= 50; ++step) {
      for (std::size_t i = 0; i < 9000; ++i)
        g[i] = x[i] - static_cast<float>(i % 7 + static_cast<std::size_t>(transport.rank())) / 3.0F;
      optimizer.step(x, g);
    }
    std::uint64_t hash = 1469598103934665603U;
    for (std::size_t i = 0; i < 9000; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &x[i], sizeof bits);
      hash = (hash ^ bits) * 1099511628211U;
    }
    hashes[static_cast<std::size_t>(transport.rank())] = hash;
  });
  for (const std::uint64_t hash : hashes) std::printf("%016llx\n", static_cast<unsigned long long>(hash));
}

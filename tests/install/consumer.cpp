// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstring>
#include <vector>

#include "terse/terse.hpp"

// What a user's program includes once the library is installed. Prints the bits of a parameter.
int main() {
  terse::ThreadGroup(2).run([](terse::Threads& transport) {
    const terse::Layout layout = terse::Layout::flat(100);
    terse::Optimizer optimizer{terse::MomentumSgd<>{}, transport, layout};
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size(), 1);
    for (int step = 0; step < 3; ++step) optimizer.step(x, g);
    if (x[0] == 0) throw terse::error("the steps moved nothing");
    unsigned bits = 0;
    std::memcpy(&bits, x.data(), sizeof bits);
    if (transport.rank() == 0) std::printf("%08x\n", bits);
  });
}

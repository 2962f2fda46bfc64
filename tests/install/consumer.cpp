// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "terse/terse.hpp"

// What a user's program includes once the library is installed.
int main() {
  terse::ThreadGroup(2).run([](terse::Threads& transport) {
    const terse::Layout layout = terse::Layout::flat(100);
    terse::Optimizer optimizer{terse::MomentumSgd<>{}, transport, layout};
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size(), 1);
    optimizer.step(x, g);
    if (x[0] == 0) throw terse::error("the step moved nothing");
  });
}

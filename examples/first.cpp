// SPDX-License-Identifier: Apache-2.0

#include <cstdio>

#include "terse/terse.hpp"

int main() {
  terse::ThreadGroup(4).run([](terse::Threads& transport) {  // four ranks; over MPI: terse::Mpi::run
    const terse::OneBitAdam<terse::Sign, terse::FrozenVariance, terse::Ring> recipe{
        .learning_rate = 0.03F, .preconditioner = {.freeze = terse::AtStep{20}}};  // one bit from step 21 on
    terse::Optimizer optimizer{recipe, transport, terse::Layout::flat(102'400)};
    std::vector<float> x(102'400), gradient(x.size());  // the size of the layout, a multiple of 64
    for (int step = 0; step < 300; ++step) {
      for (std::size_t i = 0; i < x.size(); ++i) gradient[i] = x[i] - static_cast<float>(transport.rank());
      optimizer.step(x, gradient);  // x stays equal on all ranks, to the bit
    }
    if (transport.rank() == 0) std::printf("%.2f, the mean of 0, 1, 2 and 3\n", x[0]);
  });
}

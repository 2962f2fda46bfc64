// SPDX-License-Identifier: Apache-2.0
// steps COUNT ELEMENTS METHOD: takes that many compressed steps on one rank, for whoever counts instructions or cache misses.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/threads.hpp"

namespace {

template <class R>
void take(const R& recipe, int count, terse::index_t elements) {
  terse::ThreadGroup(1).run([&](terse::Threads& transport) {
    terse::Optimizer optimizer{recipe, transport, terse::Layout::flat(elements)};
    std::vector<float> x(static_cast<std::size_t>(elements)), gradient(x.size());
    std::uint32_t state = 1;
    for (float& g : gradient) g = static_cast<float>(state = state * 1664525U + 1013904223U) * 0x1p-31F - 1;
    for (int step = 0; step <= count; ++step) optimizer.step(x, gradient);
    std::printf("%g\n", static_cast<double>(x[0]));
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int count = std::atoi(argv[1]);
  const terse::index_t elements = std::atoll(argv[2]);
  const std::string method = argv[3];
  // The first step is in full precision.
  constexpr terse::FrozenVariance soon{.freeze = terse::AtStep{1}};
  if (method == "adam")
    take(terse::Adam<>{}, count, elements);
  else if (method == "one-bit-adam")
    take(terse::OneBitAdam<>{.preconditioner = soon}, count, elements);
  else if (method == "one-bit-adam-blocks")
    take(terse::OneBitAdam<terse::ScaledSign<terse::RootMeanSquare, terse::PerBlock<4096>>>{.preconditioner =
                                                                                                soon},
         count, elements);
  else
    return 2;
}

// SPDX-License-Identifier: Apache-2.0

// Uses each archetype where a user would. OMIT_ and WRONG_ macros take members away, and the compiler must name them in one
// sentence each; without any the program must compile. Run by omissions.py.

#include "laws/archetypes.hpp"
#include "terse/compressor/sign.hpp"
#include "terse/optimizer/averaging.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/optimizer/parameter_mixing.hpp"
#include "terse/transport/thread.hpp"

namespace {

/// A step of R over T, and its state.
template <class R, class T = terse::Threads>
[[maybe_unused]] void train(T& transport) {
  std::vector<float> x(64), g(64);
  terse::Optimizer optimizer{R{}, transport, terse::Layout::flat(1)};
  optimizer.step(x, g);
  optimizer.walk([](auto&&...) {});
}

}  // namespace

int main() {
  terse::ThreadGroup(1).run([](terse::Threads& transport) {
    using Ring = terse::Mixing<terse::graph::Ring>;
    train<terse::Averaging<archetype::Correction>>(transport);
    train<terse::Averaging<archetype::Preconditioner>>(transport);
    train<terse::Averaging<archetype::Layers>>(transport);
    train<terse::ParameterMixing<archetype::Mixing, Ring>>(transport);
    train<terse::ParameterMixing<archetype::Tracking, Ring>>(transport);
    train<terse::ParameterMixing<archetype::Direction, Ring>>(transport);
    train<terse::Averaging<terse::Packed<archetype::Quantizer, terse::PerSegment>, terse::Residual>>(
        transport);
    train<terse::Averaging<archetype::Compressor, terse::NoErrorFeedback>>(transport);
    train<terse::Averaging<terse::ScaledSign<terse::MeanAbs>, archetype::Feedback>>(transport);
    train<terse::Averaging<terse::Sparse<archetype::Selection, terse::Dense, terse::PerSegment>,
                           terse::Residual>>(transport);
    train<terse::Averaging<terse::ScaledSign<terse::MeanAbs>, archetype::Topology>>(transport);
    train<archetype::Recipe>(transport);
  });
  static_assert(terse::graph::check_graph<archetype::Graph>());
  archetype::run(1, [](archetype::Transport& transport) { train<terse::Averaging<>>(transport); });
}

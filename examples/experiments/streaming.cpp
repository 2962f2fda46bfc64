// SPDX-License-Identifier: Apache-2.0
#include "all.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/streaming_diloco.hpp"

namespace experiments {
namespace {

using Int4 = terse::Uniform<4, terse::Nearest, terse::Symmetric, terse::MaxAbs, terse::PerBlock<128>>;

constexpr std::uint64_t period = 16;
const terse::Adam<> inner{.learning_rate = 1e-3F};

/// The first matrix is most of the model, and fragments are whole segments: so it is eight of them, in the same places.
terse::Layout in_rows() {
  const terse::Layout whole = Model::layout();
  terse::Layout layout;
  for (const terse::Segment& segment : whole.segments()) {
    if (segment.name != "first.weight") {
      layout.add(segment);
      continue;
    }
    for (int k = 0; k < 8; ++k)
      layout.add({segment.name + "." + std::to_string(k), {segment.shape[0] / 8, segment.shape[1]}});
  }
  return layout;
}

template <class... Ps>
Maker fragments(std::uint64_t delay) {
  return maker(terse::StreamingDiLoCo<terse::Adam<>, Ps...>{.inner = inner,
                                                            .period = period,
                                                            .outer = {.local_share = 0},
                                                            .schedule = {.count = 3, .delay = delay}},
               in_rows());
}

}  // namespace

Experiment streaming() {
  Experiment experiment{"streaming",
                        {{"loss", 3, &Figures::loss},
                         {"accuracy", 3, &Figures::accuracy},
                         {"bytes a step", 0, &Figures::bytes},
                         {"largest burst", 0, &Figures::burst},
                         {"ms a step beyond 30", 2, &Figures::stall}}};
  // 100 Mbit/s, and gradients that take 30 ms.
  const Training slow{
      .link = terse::Link{.latency = std::chrono::milliseconds(1), .bytes_per_second = 12.5e6},
      .pace = std::chrono::milliseconds(30)};
  experiment.add("no meetings", maker(terse::DiLoCo<terse::Adam<>>{.inner = inner, .period = 1'000'000}),
                 slow);
  experiment.add("DiLoCo", maker(terse::DiLoCo<terse::Adam<>>{.inner = inner, .period = period}), slow);
  experiment.add("3 fragments", fragments<>(0), slow);
  experiment.add("3 fragments, delay 1", fragments<>(1), slow);
  experiment.add("3 fragments, delay 4", fragments<>(4), slow);
  experiment.add("3 fragments, delay 4, int4", fragments<Int4>(4), slow);
  return experiment;
}

}  // namespace experiments

// SPDX-License-Identifier: Apache-2.0
#include "made_pipeline.hpp"

namespace pipeline {

Made make_direct(const Coding& coding, const Settings& settings, Wire& wire, Model& stage) {
  if (coding.method == Method::exact) return make(terse::ExactActivations{}, settings, wire, stage);
  if (coding.method != Method::direct) return nullptr;
  const auto direct = [&]<class Forward, class Backward>(Forward forward, Backward backward) {
    return make(terse::DirectActivations<Forward, Backward>{forward, backward}, settings, wire, stage);
  };
  using Half = terse::Cast<terse::fp16>;
  // Rounding to nearest is biased, but by half of the last bit: nobody needs unbiased fp16.
  if (coding.forward_bits == 16 && coding.backward_bits == 16)
    return direct(Half{}, terse::Unchecked<Half>{});
  if (coding.forward_bits == 16 && coding.backward_bits == 32) return direct(Half{}, terse::Dense{});
  if (coding.granularity == Granularity::wide_block) return nullptr;
  return coding.granularity == Granularity::row ? with_bits<Rows>(coding, direct)
                                                : with_bits<Blocks>(coding, direct);
}

}  // namespace pipeline

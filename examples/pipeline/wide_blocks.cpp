// SPDX-License-Identifier: Apache-2.0
#include "made_pipeline.hpp"
#include "terse/compressor/hadamard.hpp"

namespace pipeline {

Made make_wide_blocks(const Coding& coding, const Settings& settings, Wire& wire, Model& stage) {
  if (coding.granularity != Granularity::wide_block) return nullptr;
  const auto with = [&](auto forward, auto backward) -> Made {
    using Forward = decltype(forward);
    using Backward = decltype(backward);
    if (coding.method == Method::direct)
      return make(terse::DirectActivations<Forward, Backward>{}, settings, wire, stage);
    if (coding.method == Method::rotated)
      return make(terse::DirectActivations<terse::Hadamard<Forward>, Backward>{}, settings, wire, stage);
    if (coding.first == First::fp32)
      return make_changes<terse::fp16, terse::Dense>(forward, backward, settings, wire, stage);
    return make_changes<terse::fp16, terse::Cast<terse::fp16>>(forward, backward, settings, wire, stage);
  };
  if (coding.forward_bits == 4) return with(Nearest<4, WideBlocks>{}, Unbiased<8, WideBlocks>{});
  if (coding.forward_bits == 3) return with(Nearest<3, WideBlocks>{}, Unbiased<6, WideBlocks>{});
  return with(Nearest<2, WideBlocks>{}, Unbiased<4, WideBlocks>{});
}

}  // namespace pipeline

// SPDX-License-Identifier: Apache-2.0
#include "made_pipeline.hpp"

namespace pipeline {

Made make_block_changes(const Coding& coding, const Settings& settings, Wire& wire, Model& stage) {
  if (coding.method != Method::changes || coding.granularity != Granularity::block ||
      coding.memory != Memory::fp16 || coding.first != First::fp32)
    return nullptr;
  return with_bits<Blocks>(coding, [&](auto forward, auto backward) {
    return make_changes<terse::fp16, terse::Dense>(forward, backward, settings, wire, stage);
  });
}

}  // namespace pipeline

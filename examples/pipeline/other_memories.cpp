// SPDX-License-Identifier: Apache-2.0
#include "made_pipeline.hpp"

namespace pipeline {
namespace {

template <class Forward, class Backward>
Made with_memory(const Coding& coding, const Settings& settings, Wire& wire, Model& stage) {
  const auto changes = [&]<class Format, class Whole>() {
    return make_changes<Format, Whole>(Forward{}, Backward{}, settings, wire, stage);
  };
  using terse::Dense, terse::fp16;
  if (coding.first == First::fp32) {
    if (coding.memory == Memory::fp32) return changes.template operator()<float, Dense>();
    if (coding.memory == Memory::bf16) return changes.template operator()<terse::bf16, Dense>();
    if (coding.memory == Memory::int8) return changes.template operator()<terse::Int8, Dense>();
  } else if (coding.memory == Memory::fp16) {
    if (coding.first == First::fp16) return changes.template operator()<fp16, terse::Cast<fp16>>();
    if (coding.first == First::int8) return changes.template operator()<fp16, Nearest<8, Blocks>>();
  }
  return nullptr;
}

}  // namespace

Made make_changes_of_other_memories(const Coding& coding, const Settings& settings, Wire& wire,
                                    Model& stage) {
  if (coding.method != Method::changes || coding.granularity != Granularity::block) return nullptr;
  const auto with_backward = [&]<class Forward>(Forward) -> Made {
    if (coding.backward_bits == 32) return with_memory<Forward, terse::Dense>(coding, settings, wire, stage);
    if (coding.backward_bits == 4)
      return with_memory<Forward, Unbiased<4, Blocks>>(coding, settings, wire, stage);
    return nullptr;
  };
  if (coding.forward_bits == 2) return with_backward(Nearest<2, Blocks>{});
  if (coding.forward_bits == 4) return with_backward(Nearest<4, Blocks>{});
  return nullptr;
}

}  // namespace pipeline

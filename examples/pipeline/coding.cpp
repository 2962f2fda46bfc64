// SPDX-License-Identifier: Apache-2.0
#include "coding.hpp"

#include <fmt/format.h>

namespace pipeline {

const char* name(Method method) {
  switch (method) {
    case Method::exact:
      return "exact";
    case Method::changes:
      return "changes";
    case Method::direct:
      return "direct";
    case Method::rotated:
      return "rotated";
  }
  return "?";
}

std::string name(const Coding& coding) {
  if (coding.method == Method::exact) return "exact";
  return fmt::format("{} {}/{}", name(coding.method), coding.forward_bits, coding.backward_bits);
}

std::string why_not(const Coding& coding) {
  if (coding.method == Method::exact) return "";
  const int forward = coding.forward_bits, backward = coding.backward_bits;
  if (coding.granularity == Granularity::wide_block && forward != 16) {
    if (backward != 2 * forward || forward < 2 || forward > 4)
      return "bits with --granularity 128 are 4/8, 3/6 or 2/4, or 16 of direct";
    if (coding.memory != Memory::fp16) return "memories but fp16 go with --granularity 64";
    return coding.first == First::int8 ? "first visits in 8 bits go with --granularity 64" : "";
  }
  if (coding.method == Method::rotated) return "rotated requires --granularity 128";
  const auto quantizes = [](int bits) { return bits == 2 || bits == 3 || bits == 4 || bits == 8; };
  if (coding.method == Method::direct && forward == 16)
    return backward == 16 || backward == 32 ? "" : "direct:16 requires 16 or 32 bits backward";
  if (!quantizes(forward))
    return coding.method == Method::changes ? "forward bits of changes are 2, 3, 4 or 8"
                                            : "forward bits of direct are 2, 3, 4, 8 or 16";
  if (backward != 4 && backward != 8 && backward != 32)
    return "backward bits are 4, 8 or 32, or 16 with direct:16; 2 bits, unbiased, are too coarse to train "
           "with";
  const bool plain = coding.memory == Memory::fp16 && coding.first == First::fp32;
  if (coding.method == Method::direct || plain) return "";
  if (coding.granularity == Granularity::row)
    return "memories but fp16 and first visits but fp32 go with --granularity 64";
  if (coding.memory != Memory::fp16 && coding.first != First::fp32)
    return "memories but fp16 go with --first fp32";
  if ((forward != 2 && forward != 4) || backward == 8)
    return "memories but fp16 and first visits but fp32 go with 2 or 4 bits forward, 4 or 32 backward";
  return "";
}

}  // namespace pipeline

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace pipeline {

/// What travels between stages.
enum class Method {
  exact,    ///< fp32 both ways
  changes,  ///< changes of activations against copies, AcSgd
  direct,   ///< activations as they are, DirectActivations
  rotated   ///< the same in Hadamard's basis
};
/// What has a scale of its own.
enum class Granularity { block, wide_block, row };
/// What copies are kept in.
enum class Memory { fp32, fp16, bf16, int8 };
/// How an example travels at its first visit.
enum class First { fp32, fp16, int8 };

/// A method and its settings. Bits are of an element: 32 is fp32, 16 fp16.
struct Coding {
  Method method = Method::exact;
  int forward_bits = 32;
  int backward_bits = 32;
  Granularity granularity = Granularity::block;
  Memory memory = Memory::fp16;
  First first = First::fp32;
};

/// Elements of a block, at `Granularity::block`: a token of the text's model.
inline constexpr int block = 64;
/// And at `wide_block`: a third of a token of the pretrained model.
inline constexpr int wide_block = 128;

const char* name(Method method);
/// Such as "changes 2/4", the bits forward and backward.
std::string name(const Coding& coding);

/// Why there is no such combination in this program, each of which is compiled; empty where there is.
std::string why_not(const Coding& coding);

}  // namespace pipeline

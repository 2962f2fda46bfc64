// SPDX-License-Identifier: Apache-2.0
#include "golden.hpp"
#include "terse/compressor/hadamard.hpp"
#include "terse/optimizer/deep_gradient_compression.hpp"
#include "terse/optimizer/demo.hpp"
#include "terse/optimizer/dion.hpp"
#include "terse/optimizer/distributed_lion.hpp"
#include "terse/optimizer/e_control.hpp"
#include "terse/optimizer/ef21_sgd.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/power_sgd.hpp"
#include "terse/optimizer/quantized_sgd.hpp"
#include "terse/optimizer/sign_sgd.hpp"

namespace golden {

void add_averaging(std::vector<Row>& rows) {
  add(rows, "ErrorFeedbackSgd, decay, clipped", ErrorFeedbackSgd<>{.weight_decay = 0.1F}, {.clip_norm = 5});
  add(rows, "ErrorFeedbackSgd, Ring, warm-up, follows the rate",
      ErrorFeedbackSgd<ScaledSign<MeanAbs>, LocalMomentumBefore, Ring>{
          .warmup_steps = 3, .error_feedback = {.follows_rate = true}});
  add(rows, "ErrorFeedbackSgd, casts, stored in 8 bits",
      ErrorFeedbackSgd<Cast<e4m3, MaxAbs, PerBlock<256>>, HeavyBall, ScatterGather, Int8Residual>{});
  add(rows, "ErrorFeedbackSgd, AllGather, 16 bits",
      ErrorFeedbackSgd<ScaledSign<MeanAbs>, HeavyBall, AllGather>{}, {}, {2, 3}, Numbers<fp16, bf16>{});
  add(rows, "QuantizedSgd", QuantizedSgd<>{.weight_decay = 0.1F}, {.clip_norm = 5});
  add(rows, "QuantizedSgd, 8 bits, Ring", QuantizedSgd<Uniform<8, Stochastic, Symmetric>, HeavyBall, Ring>{});
  add(rows, "SignSgd", SignSgd<>{});
  add(rows, "Ef21Sgd", Ef21Sgd<>{.warmup_steps = 2, .compressor = {.selection = {.ratio = 0.05}}});
  add(rows, "Ef21Sgdm", Ef21Sgdm<>{.compressor = {.selection = {.ratio = 0.05}}}, {}, {2, 3});
  add(rows, "EControl",
      EControl<>{.compressor = {.selection = {.ratio = 0.05}}, .error_feedback = {.eta = 0.1F}}, {}, {2, 3});
  add(rows, "ErrorFeedbackSgd, Hadamard",
      ErrorFeedbackSgd<Hadamard<Uniform<4, Nearest, Symmetric, MaxAbs, PerBlock<128>>>, ScatterGather>{}, {},
      {2, 3});
  add(rows, "LoCo on two levels",
      ErrorFeedbackSgd<Uniform<4, Nearest, Symmetric, MaxAbs, PerBlock<128>>, HeavyBall, AveragedResidual<>,
                       Hierarchical<Within<Uniform<8>>, ScatterGather>>{.error_feedback = {.clear_every = 4},
                                                                        .topology = {2, {}, {}}},
      {}, {2, 4});
  add(rows, "DeepGradientCompression",
      DeepGradientCompression<>{.compressor = {.selection = {.ratio = 0.05, .warmup_steps = 5}}},
      {.clip_norm = 5});
  add(rows, "DeMo",
      DeMo<Dct<16>>{
          .weight_decay = 0.1F, .decay = 0.9F, .compressor = {.inner = {.selection = {.ratio = 0.05}}}},
      {.clip_norm = 5});
  add(rows, "DeMo, tiles as they are, follows the rate",
      DeMo<Tiles<64>>{.compressor = {.inner = {.selection = {.ratio = 0.05}}},
                      .error_feedback = {.follows_rate = true}});
  add(rows, "DistributedLion", DistributedLion<>{.weight_decay = 0.1F}, {.clip_norm = 5});
  add(rows, "AveragedLion", AveragedLion<>{});
  add(rows, "PowerSgd", PowerSgd<2>{.weight_decay = 0.1F}, {.clip_norm = 5});
  add(rows, "Dion", Dion<2>{.weight_decay = 0.1F}, {.clip_norm = 5});
}

}  // namespace golden

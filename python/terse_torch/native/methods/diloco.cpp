// SPDX-License-Identifier: Apache-2.0
#include "../method.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/sparse_loco.hpp"
#include "terse/optimizer/local/streaming_diloco.hpp"

namespace terse_torch {
namespace {

terse::Adam<> inner(const Settings& settings) {
  return {.learning_rate = settings.number("lr"),
          .beta1 = settings.number("beta1"),
          .beta2 = settings.number("beta2"),
          .epsilon = settings.number("eps"),
          .weight_decay = settings.number("weight_decay")};
}

const bool diloco = add<[](const Settings& settings) {
  return terse::DiLoCo<terse::Adam<>>{
      .inner = inner(settings),
      .period = settings.count("period"),
      .outer = {.rate = settings.number("outer_lr"), .momentum = settings.number("outer_momentum")}};
}>("DiLoCo");

const bool streaming_diloco = add<[](const Settings& settings) {
  return terse::StreamingDiLoCo<terse::Adam<>>{
      .inner = inner(settings),
      .period = settings.count("period"),
      .outer = {.rate = settings.number("outer_lr"),
                .momentum = settings.number("outer_momentum"),
                .local_share = settings.number("local_share")},
      .schedule = {.count = settings.count("fragments"), .delay = settings.count("delay")}};
}>("StreamingDiLoCo");

const bool sparse_loco = add<[](const Settings& settings) {
  return terse::SparseLoCo<terse::Adam<>>{.inner = inner(settings),
                                          .period = settings.count("period"),
                                          .decay = settings.number("decay"),
                                          .outer = {.rate = settings.number("outer_lr")}};
}>("SparseLoCo");

}  // namespace
}  // namespace terse_torch

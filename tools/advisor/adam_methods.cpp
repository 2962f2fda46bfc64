// SPDX-License-Identifier: Apache-2.0
#include "figures.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/lamb.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/one_bit_lamb.hpp"
#include "terse/optimizer/zero_one_adam.hpp"

namespace advise {
namespace {

template <class R>
R freezing(R recipe) {
  recipe.preconditioner.freeze = terse::AtStep{2};
  return recipe;
}

}  // namespace

std::vector<Method> adam_methods() {
  // Meetings after 1, 2, 4, 8 and then 16 local steps.
  const terse::ZeroOneAdam<> zero_one{
      .variance_freeze_step = 2, .local_interval_steps = 1, .most_local_steps = 16};
  return {method("adam", "adam", terse::Adam<>{}),
          method("lamb", "lamb", terse::Lamb<>{}),
          overlapping(method("1-bit-adam", "adam", freezing(terse::OneBitAdam<>{}), 4)),
          overlapping(method("1-bit-adam/ring", "adam", freezing(terse::OneBitAdam<terse::Ring>{}), 4)),
          method("1-bit-lamb", "lamb", freezing(terse::OneBitLamb<>{}), 4),
          method("0/1-adam", "adam", zero_one, 2 + 1 + 2 + 4 + 8 + 16, 16)};
}

}  // namespace advise

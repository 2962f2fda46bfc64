// SPDX-License-Identifier: Apache-2.0
#include "figures.hpp"
#include "terse/optimizer/deep_gradient_compression.hpp"
#include "terse/optimizer/ef21_sgd.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/momentum_sgd.hpp"
#include "terse/optimizer/power_sgd.hpp"
#include "terse/optimizer/quantized_sgd.hpp"

namespace advise {

std::vector<Method> sgd_methods() {
  return {method("momentum-sgd", "momentum-sgd", terse::MomentumSgd<>{}),
          method("error-feedback-sgd", "momentum-sgd", terse::ErrorFeedbackSgd<>{}),
          method("deep-gradient-compression", "momentum-sgd", terse::DeepGradientCompression<>{}, 3),
          method("ef21-sgd", "momentum-sgd", terse::Ef21Sgd<>{}, 3),
          method("quantized-sgd", "momentum-sgd", terse::QuantizedSgd<>{}),
          method("power-sgd", "momentum-sgd", terse::PowerSgd<2>{})};
}

}  // namespace advise

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace train {

/// Where models and optimizers are.
enum class Device { cpu, cuda };

}  // namespace train

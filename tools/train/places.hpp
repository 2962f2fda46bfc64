// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "terse/executor/host.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/metered.hpp"

namespace terse::checkpoint {
class Manifest;
}

namespace train {

/// Where a rank's steps run, and what their messages go over.
template <terse::Transport T, terse::Executor E>
struct Place {
  using Transport = T;
  using Executor = E;
  T transport;
  E executor;
};

/// What the units of the host are instantiated for; those of nvcc are for OnCuda, see cuda_place.cuh.
struct OnHost : Place<terse::Metered<terse::AnyTransport>, terse::executor::host> {
  // As terse::checkpoint's; in any_state.hpp.
  template <class Optimizer>
  static void save(const std::filesystem::path& file, Optimizer& optimizer, const float* parameters);
  template <class Optimizer>
  static void load(const terse::checkpoint::Manifest& manifest, Optimizer& optimizer, float* parameters);
};

}  // namespace train

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/executor/host.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/metered.hpp"

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
struct OnHost : Place<terse::Metered<terse::AnyTransport>, terse::executor::host> {};

}  // namespace train

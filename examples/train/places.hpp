// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/executor/host.hpp"
#include "terse/transport/metered.hpp"
#include "terse/transport/thread.hpp"
#ifdef TERSE_HAVE_MPI
#include "terse/transport/mpi.hpp"
#endif

namespace train {

/// Where a rank's steps run, and what their messages go over.
template <terse::Transport T, terse::Executor E>
struct Place {
  using Transport = T;
  using Executor = E;
  T transport;
  E executor;
};

template <terse::Transport T>
using OnHost = Place<terse::Metered<T>, terse::executor::host>;

// What the units of the host are instantiated for; those of nvcc are for OnCuda, see cuda_place.cuh.
using OnThreads = OnHost<terse::Threads>;
#ifdef TERSE_HAVE_MPI
using OnMpi = OnHost<terse::Mpi>;
#endif

}  // namespace train

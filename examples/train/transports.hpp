// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/transport/metered.hpp"
#include "terse/transport/thread.hpp"
#ifdef TERSE_HAVE_MPI
#include "terse/transport/mpi.hpp"
#endif

namespace train {

// What the units of this program are instantiated for.
using MeteredThreads = terse::Metered<terse::Threads>;
#ifdef TERSE_HAVE_MPI
using MeteredMpi = terse::Metered<terse::Mpi>;
#endif

}  // namespace train

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace train {

/// Whether this process must begin with MPI: mpirun has started it, or `--transport mpi` is asked for.
inline bool needs_mpi(int argc, char** argv) {
  // Open MPI and MPICH tell their processes so; what they need to know about each other comes later.
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(variable) != nullptr) return true;
  return std::any_of(argv + 1, argv + argc, [](std::string_view argument) {
    return argument == "mpi" || argument == "--transport=mpi";
  });
}

}  // namespace train

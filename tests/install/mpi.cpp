// SPDX-License-Identifier: Apache-2.0
#include "terse/transport/mpi.hpp"

// Links what terse::mpi and terse-mpi say; runs nothing that needs mpirun.
int main(int argc, char** argv) {
  if (argc > 1) terse::Mpi::run(argc, argv, [](terse::Mpi&) {});
}

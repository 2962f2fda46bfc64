// SPDX-License-Identifier: Apache-2.0

// mpirun -n 4 hello_mpi

#include "rank_program.hpp"
#include "terse/transport/mpi.hpp"

int main(int argc, char** argv) {
  return terse::Mpi::run(argc, argv, [](terse::Mpi& transport) { rank_program(transport); });
}

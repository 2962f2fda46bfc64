// SPDX-License-Identifier: Apache-2.0
#include "terse/transport/mpi.hpp"
#include "program.hpp"

int main(int argc, char** argv) {
  return terse::Mpi::run(argc, argv, [](terse::Mpi& transport) { bits::hash_all(transport); });
}

// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include "resume.inc"

#include <cstdlib>

#include "terse/transport/mpi.hpp"

namespace {
terse::Mpi* world = nullptr;
}

TEST_CASE("k steps, save, load and k steps give the bits of 2 k steps over MPI") {
  // Every rank has files of its own, so one folder for each process will do.
  std::string name = (std::filesystem::temp_directory_path() / "terse-resume-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  resume::check_all_recipes(*world, name);
  std::filesystem::remove_all(name);
}

int main(int argc, char** argv) {
  return terse::Mpi::run(argc, argv, [&](terse::Mpi& transport) {
    world = &transport;
    if (doctest::Context(argc, argv).run() != 0) throw terse::error("a check has failed", transport.rank());
  });
}

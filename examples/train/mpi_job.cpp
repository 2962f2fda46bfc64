// SPDX-License-Identifier: Apache-2.0
#include "mpi_job.hpp"

#include <algorithm>
#include <boost/mpi/collectives.hpp>
#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>
#include <cstdlib>
#include <vector>

#include "terse/transport/mpi.hpp"

namespace train {

struct MpiJob::Parts {
  Parts(int& argc, char**& argv) : environment(argc, argv) {}
  boost::mpi::environment environment;
  boost::mpi::communicator world;
};

MpiJob::MpiJob(int& argc, char**& argv) : parts_(std::make_unique<Parts>(argc, argv)) {}
MpiJob::~MpiJob() = default;

int MpiJob::rank() const { return parts_->world.rank(); }
int MpiJob::size() const { return parts_->world.size(); }

std::string MpiJob::first_fault(const std::string& mine) {
  std::vector<std::string> faults;
  boost::mpi::all_gather(parts_->world, mine, faults);
  const auto first =
      std::find_if(faults.begin(), faults.end(), [](const std::string& fault) { return !fault.empty(); });
  return first == faults.end() ? std::string() : *first;
}

terse::AnyTransport MpiJob::connect(std::chrono::milliseconds deadline) {
  return terse::AnyTransport(terse::Mpi(parts_->world, deadline));
}

int MpiJob::number() const {
  MPI_Comm neighbours = MPI_COMM_NULL;
  MPI_Comm_split_type(parts_->world, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &neighbours);
  int number = 0;
  MPI_Comm_rank(neighbours, &number);
  MPI_Comm_free(&neighbours);
  return number;
}

void MpiJob::abort(int status) {
  boost::mpi::environment::abort(status);
  std::abort();  // not reached
}

}  // namespace train

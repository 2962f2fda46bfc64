// SPDX-License-Identifier: Apache-2.0

// One process for each GPU; they add up their ranks.
//
//   mpirun -n 4 hello_nccl                            the ranks meet over MPI
//   srun -n 4 --gpus-per-node=4 hello_nccl PATH       they meet at a file that all of them see; no MPI is used

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "terse/transport/mpi.hpp"
#include "terse/transport/nccl.hpp"

namespace {

int number(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr)
    throw std::runtime_error(std::string(variable) + " is not set; was this started by srun?");
  return std::atoi(text);
}

/// NCCL wants a GPU for each rank. Launchers that give each process a GPU of its own show it just that one.
void choose_gpu() {
  int local_rank = 0, gpus = 1;
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"})
    if (std::getenv(variable) != nullptr) local_rank = number(variable);
  if (cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0) cudaSetDevice(local_rank % gpus);
}

/// This rank's place in a job step of SLURM. The run's name is new each time, after a requeue, too.
terse::Rendezvous in_slurm(const std::string& path) {
  const char* const restarts = std::getenv("SLURM_RESTART_COUNT");
  const std::string run = std::to_string(number("SLURM_JOB_ID")) + "." +
                          std::to_string(number("SLURM_STEP_ID")) + "." +
                          (restarts != nullptr ? restarts : "0");
  return {path, run, number("SLURM_PROCID"), number("SLURM_NTASKS")};
}

void rank_program(terse::Nccl transport) {
  const float mine = static_cast<float>(transport.rank());
  float sum = 0;
  terse::buffer<float, terse::memory::device> place(1);
  cudaMemcpyAsync(place.data(), &mine, sizeof mine, cudaMemcpyHostToDevice, transport.stream());
  transport.all_reduce(place.data(), 1).wait();
  transport.synchronize();  // with a deadline, which copies to pageable memory don't have
  terse::memory::device::download(&sum, place.data(), sizeof sum);
  if (transport.rank() == 0)
    std::printf("the ranks of %d GPUs add up to %g\n", transport.size(), static_cast<double>(sum));
}

void over_mpi(terse::Mpi& boot) {
  choose_gpu();
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  rank_program(terse::Nccl::create(boot, stream));
}

void over_file(const std::string& path) {
  choose_gpu();
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  rank_program(terse::Nccl::rendezvous(in_slurm(path), stream, std::chrono::minutes(2)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return terse::Mpi::run(argc, argv, over_mpi);
  try {
    over_file(argv[1]);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

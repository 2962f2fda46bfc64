// SPDX-License-Identifier: Apache-2.0

// Trains a classifier of pictures over data-parallel ranks with each of several optimizers, and compares what
// they reach and what they send. The flow: options -> data -> train_rank on every rank -> table and files.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model.hpp"
#include "options.hpp"
#include "output.hpp"
#include "report.hpp"
#include "saved_run.hpp"
#include "terse/checkpoint/stop_signal.hpp"
#include "terse/core/error.hpp"
#include "terse/transport/thread.hpp"
#include "trainer.hpp"
#ifdef TERSE_HAVE_MPI
#include "mpi_job.hpp"
#endif

namespace {

constexpr int failed = 1;
constexpr int bad_input = 2;

void complain(const std::string& line) {
  std::fprintf(stderr, "train: %s\n", line.c_str());
  std::fflush(stderr);
}

using train::deadline_of;

// Nothing where help was asked for.
std::optional<train::Job> prepare(int argc, char** argv, int world, bool first) {
  std::FILE* const out = first ? stdout : std::fopen("/dev/null", "w");
  std::optional<train::Options> options = train::parse_options(argc, argv, out, train::program);
  if (!first && out) std::fclose(out);
  if (!options) return std::nullopt;
#ifndef TERSE_HAVE_MPI
  if (options->transport == train::Transport::mpi)
    throw train::input_error("--transport: this program was built without MPI");
#endif
  const bool processes = train::ranks_are_processes(*options, world);
  if (processes) options->ranks = world;
  if (options->transport == train::Transport::automatic && options->device == train::Device::cpu)
    options->transport = processes ? train::Transport::mpi : train::Transport::threads;
  if (const std::string reason = train::Model::why_not(options->device); !reason.empty())
    throw train::input_error(fmt::format("--device {}: {}", name(options->device), reason));
  train::check_files(*options, first);
  // Until the process ends; other ranks would ask for what is taken.
  static std::optional<terse::checkpoint::RunLock> lock;
  if (first && !options->checkpoint.empty()) lock.emplace(train::lock_checkpoints(options->checkpoint));
  // The same: a late signal must not end what is already being left.
  static std::optional<terse::checkpoint::StopSignals> signals;
  if (!options->checkpoint.empty()) signals.emplace();
  train::Job job = train::load_job(*options, options->ranks);
  if (first && options->device == train::Device::cpu && train::Model::blas().empty() && !options->quiet)
    complain("OpenBLAS isn't loaded, so training may be many times slower (Debian: libopenblas0-pthread)");
  return job;
}

using Runs = std::optional<std::vector<train::Run>>;

/// Prints and writes what came out, and returns the exit code.
int report(const train::Options& options, const std::vector<train::Run>& runs) {
  train::Outputs write(complain);
  write([&] { train::print_table(stdout, runs); });
  if (!options.json.empty()) write([&] { train::write_json(options.json, runs); });
  if (!options.csv.empty()) write([&] { train::write_csv(options.csv, runs); });
  if (!options.plot.empty()) write([&] { train::write_plot(options.plot, runs); });
  if (!write.all_written()) return bad_input;
  if (std::all_of(runs.begin(), runs.end(),
                  [](const train::Run& run) { return run.ranks_agree || run.own_models(); }))
    return EXIT_SUCCESS;
  complain("the ranks hold different parameters; this is a bug, or a machine that computes differently");
  return failed;
}

Runs train_threads(const train::Job& job) {
  Runs runs;
  terse::ThreadGroup(job.ranks, deadline_of(job.options)).run([&](terse::Threads& transport) {
    terse::AnyTransport any(transport.split(0, transport.rank()));
    Runs mine = train::train_rank(job, any, transport.rank());
    if (transport.rank() == 0) runs = std::move(mine);
  });
  return runs;
}

int run_threads(int argc, char** argv) {
  try {
    const std::optional<train::Job> job = prepare(argc, argv, 1, true);
    if (!job) return EXIT_SUCCESS;
    const Runs runs = train_threads(*job);
    return runs ? report(job->options, *runs) : terse::checkpoint::stopped_status;
  } catch (const train::input_error& fault) {
    complain(fault.what());
    return fault.status();
  } catch (const std::exception& fault) {
    complain(fault.what());
    return failed;
  }
}

#ifdef TERSE_HAVE_MPI
bool needs_mpi(int argc, char** argv) {
  // Open MPI and MPICH tell their processes so; what they need to know about each other comes later.
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(variable) != nullptr) return true;
  return std::any_of(argv + 1, argv + argc, [](const char* argument) {
    return std::string_view(argument) == "mpi" || std::string_view(argument) == "--transport=mpi";
  });
}

int run_mpi(int argc, char** argv) {
  train::MpiJob mpi(argc, argv);
  const bool first = mpi.rank() == 0;
  std::optional<train::Job> job;
  train::Fault fault;
  try {
    job = prepare(argc, argv, mpi.size(), first);
  } catch (const train::input_error& input) {
    fault = {input.what(), input.status()};
  } catch (const std::exception& other) {
    fault = {other.what(), failed};
  }
  if (job) mpi.deadline(deadline_of(job->options));
  try {
    // One rank's fault is everybody's, and one line tells it.
    const train::Fault shown = mpi.first_fault(fault);
    if (!shown.words.empty()) {
      if (first) complain(shown.words);
      return shown.status;
    }
    if (!job) return EXIT_SUCCESS;

    const train::Options& options = job->options;
    Runs runs;
    if (train::ranks_are_processes(options, mpi.size())) {
      terse::AnyTransport transport = mpi.connect();
      runs = train::train_rank(*job, transport, mpi.number());
    } else {
      runs = train_threads(*job);
    }
    if (!runs) return terse::checkpoint::stopped_status;
    return first ? report(options, *runs) : EXIT_SUCCESS;
  } catch (const train::input_error& input) {
    // Only what all ranks find out together: nobody waits for this one elsewhere.
    const train::Fault shown = mpi.first_fault({input.what(), input.status()});
    if (first) complain(shown.words);
    return shown.status;
  } catch (const std::exception& other) {
    const auto* const own = dynamic_cast<const terse::error*>(&other);
    const bool says_rank = own != nullptr && own->rank() >= 0;
    complain((says_rank ? "" : fmt::format("rank {}: ", mpi.rank())) + other.what());
  }
  mpi.abort(failed);
}
#endif

}  // namespace

int main(int argc, char** argv) {
#ifdef TERSE_HAVE_MPI
  if (needs_mpi(argc, argv)) return run_mpi(argc, argv);
#endif
  return run_threads(argc, argv);
}

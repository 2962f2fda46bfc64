// SPDX-License-Identifier: Apache-2.0

// Trains a classifier of pictures over data-parallel ranks with each of several optimizers, and compares what
// they reach and what they send. The flow: options -> data -> train_rank on every rank -> table and files.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "launch.hpp"
#include "model.hpp"
#include "options.hpp"
#include "output.hpp"
#include "report.hpp"
#include "saved_run.hpp"
#include "terse/checkpoint/stop_signal.hpp"
#include "trainer.hpp"

namespace {

/// See launch.hpp.
struct Train {
  static constexpr const char* name = "train";
  using Job = train::Job;
  using Result = std::optional<std::vector<train::Run>>;  // nothing where a signal has asked to stop

  static std::optional<Job> prepare(int argc, char** argv, int world, bool first, std::FILE* out);
  static int ranks(const Job& job) { return job.ranks; }
  static std::chrono::milliseconds deadline(const Job& job) { return train::deadline_of(job.options); }
  static bool are_processes(const Job& job, int world) {
    return train::ranks_are_processes(job.options, world);
  }
  static Result run_rank(const Job& job, terse::AnyTransport& transport, int number) {
    return train::train_rank(job, transport, number);
  }
  static int finish(const Job& job, const Result& runs, bool first);
};

std::optional<train::Job> Train::prepare(int argc, char** argv, int world, bool first, std::FILE* out) {
  std::optional<train::Options> options = train::parse_options(argc, argv, out, train::program);
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
    throw train::input_error(fmt::format("--device {}: {}", train::name(options->device), reason));
  train::check_files(*options, first);
  // Until the process ends; other ranks would ask for what is taken.
  static std::optional<terse::checkpoint::RunLock> lock;
  if (first && !options->checkpoint.empty()) lock.emplace(train::lock_checkpoints(options->checkpoint));
  // The same: a late signal must not end what is already being left.
  static std::optional<terse::checkpoint::StopSignals> signals;
  if (!options->checkpoint.empty()) signals.emplace();
  train::Job job = train::load_job(*options, options->ranks);
  if (first && options->device == train::Device::cpu && train::Model::blas().empty() && !options->quiet)
    train::complain<Train>(
        "OpenBLAS isn't loaded, so training may be many times slower (Debian: libopenblas0-pthread)");
  return job;
}

/// Prints and writes what came out.
int Train::finish(const Job& job, const Result& runs, bool first) {
  if (!runs) return terse::checkpoint::stopped_status;
  if (!first) return EXIT_SUCCESS;
  const train::Options& options = job.options;
  train::Outputs write(train::complain<Train>);
  write([&] { train::print_table(stdout, *runs); });
  if (!options.json.empty()) write([&] { train::write_json(options.json, *runs); });
  if (!options.csv.empty()) write([&] { train::write_csv(options.csv, *runs); });
  if (!options.plot.empty()) write([&] { train::write_plot(options.plot, *runs); });
  if (!write.all_written()) return train::bad_input;
  if (std::all_of(runs->begin(), runs->end(),
                  [](const train::Run& run) { return run.ranks_agree || run.own_models(); }))
    return EXIT_SUCCESS;
  train::complain<Train>(
      "the ranks hold different parameters; this is a bug, or a machine that computes differently");
  return train::failed;
}

}  // namespace

int main(int argc, char** argv) { return train::launch<Train>(argc, argv); }

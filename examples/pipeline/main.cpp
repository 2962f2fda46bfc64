// SPDX-License-Identifier: Apache-2.0

// Fine-tunes a model that is cut into stages, one for each rank, and compares ways to send the activations between them:
// what they reach, what they send, where the time goes. The flow: options -> data -> run_stage on every stage -> table
// and files.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../../tools/train/output.hpp"
#include "options.hpp"
#include "pictures.hpp"
#include "plot.hpp"
#include "report.hpp"
#include "run.hpp"
#include "terse/core/error.hpp"
#include "terse/transport/thread.hpp"
#include "text.hpp"
#ifdef TERSE_HAVE_MPI
#include "../../tools/train/mpi_job.hpp"
#endif

namespace {

constexpr int failed = 1;
constexpr int bad_input = 2;

void complain(const std::string& line) {
  std::fprintf(stderr, "pipeline: %s\n", line.c_str());
  std::fflush(stderr);
}

std::chrono::milliseconds deadline_of(const pipeline::Options& options) {
  return std::chrono::milliseconds(static_cast<long long>(1000 * options.deadline));
}

/// Nothing where help was asked for.
std::optional<pipeline::Job> prepare(int argc, char** argv, int world, bool first) {
  std::FILE* const out = first ? stdout : std::fopen("/dev/null", "w");
  std::optional<pipeline::Options> options = pipeline::parse_options(argc, argv, out);
  if (!first && out != nullptr) std::fclose(out);
  if (!options) return std::nullopt;
  if (options->transport == pipeline::Transport::mpi) {
#ifndef TERSE_HAVE_MPI
    throw train::input_error("--transport: this program was built without MPI");
#endif
    if (options->stages != world)
      throw train::input_error(
          fmt::format("--stages: {} asked for, but mpirun started {} processes", options->stages, world));
  } else if (world > 1) {
    throw train::input_error(
        fmt::format("mpirun started {} processes; they need --transport mpi to be one job", world));
  }
  if (first) pipeline::check_files(*options);
  pipeline::Data data =
      options->task == pipeline::Task::text ? pipeline::load_text() : pipeline::load_pictures();
  return pipeline::Job{*options, std::move(data)};
}

/// Prints and writes what came out, and returns the exit code.
int report(const pipeline::Options& options, const std::vector<pipeline::Run>& runs) {
  train::Outputs write(complain);
  write([&] { train::print(stdout, pipeline::format_table(options, runs)); });
  if (!options.json.empty()) write([&] { pipeline::write_json(options, runs); });
  if (!options.plot.empty()) write([&] { pipeline::write_plot(options, runs); });
  if (!write.all_written()) return bad_input;
  if (std::all_of(runs.begin(), runs.end(), [](const pipeline::Run& run) { return run.same_loss; }))
    return EXIT_SUCCESS;
  complain("the stages know different losses; this is a bug");
  return failed;
}

std::vector<pipeline::Run> run_threads_of(const pipeline::Job& job) {
  std::vector<pipeline::Run> runs;
  terse::ThreadGroup(job.options.stages, deadline_of(job.options)).run([&](terse::Threads& transport) {
    terse::AnyTransport any(transport.split(0, transport.rank()));
    std::vector<pipeline::Run> mine = pipeline::run_stage(job, any);
    if (transport.rank() == 0) runs = std::move(mine);
  });
  return runs;
}

int run_threads(int argc, char** argv) {
  try {
    const std::optional<pipeline::Job> job = prepare(argc, argv, 1, true);
    if (!job) return EXIT_SUCCESS;
    return report(job->options, run_threads_of(*job));
  } catch (const train::input_error& fault) {
    complain(fault.what());
    return bad_input;
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
  std::optional<pipeline::Job> job;
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

    const pipeline::Options& options = job->options;
    std::vector<pipeline::Run> runs;
    if (options.transport == pipeline::Transport::mpi) {
      terse::AnyTransport transport = mpi.connect();
      runs = pipeline::run_stage(*job, transport);
    } else {
      runs = run_threads_of(*job);
    }
    return first ? report(options, runs) : EXIT_SUCCESS;
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

// SPDX-License-Identifier: Apache-2.0

// Fine-tunes a model that is cut into stages, one for each rank, and compares ways to send the activations between them:
// what they reach, what they send, where the time goes. The flow: options -> data -> run_stage on every stage -> table
// and files.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "../../tools/train/launch.hpp"
#include "../../tools/train/output.hpp"
#include "glosses.hpp"
#include "options.hpp"
#include "pictures.hpp"
#include "plot.hpp"
#include "report.hpp"
#include "run.hpp"
#include "text.hpp"

namespace {

/// See launch.hpp.
struct Pipeline {
  static constexpr const char* name = "pipeline";
  using Job = pipeline::Job;
  using Result = std::vector<pipeline::Run>;

  static std::optional<Job> prepare(int argc, char** argv, int world, bool first, std::FILE* out);
  static int ranks(const Job& job) { return job.options.stages * job.options.replicas; }
  static std::chrono::milliseconds deadline(const Job& job) {
    return std::chrono::milliseconds(static_cast<long long>(1000 * job.options.deadline));
  }
  static bool are_processes(const Job& job, int) { return job.options.transport == pipeline::Transport::mpi; }
  static Result run_rank(const Job& job, terse::AnyTransport& transport, int) {
    return pipeline::run_stage(job, transport);
  }
  static int finish(const Job& job, const Result& runs, bool first);
};

std::optional<pipeline::Job> Pipeline::prepare(int argc, char** argv, int world, bool first, std::FILE* out) {
  std::optional<pipeline::Options> options = pipeline::parse_options(argc, argv, out);
  if (!options) return std::nullopt;
  if (options->transport == pipeline::Transport::mpi) {
#ifndef TERSE_HAVE_MPI
    throw train::input_error("--transport: this program was built without MPI");
#endif
    if (options->stages * options->replicas != world)
      throw train::input_error(
          fmt::format("--stages {} and --replicas {} are not the {} processes that mpirun started",
                      options->stages, options->replicas, world));
  } else if (world > 1) {
    throw train::input_error(
        fmt::format("mpirun started {} processes; they need --transport mpi to be one job", world));
  }
  if (first) pipeline::check_files(*options);
  pipeline::Data data =
      options->task == pipeline::Task::text ? pipeline::load_text()
      : options->task == pipeline::Task::glosses
          ? pipeline::load_glosses(options->pretrained, options->examples, options->held_out)
          : pipeline::load_pictures();
  if (options->held_out > 0) data.test.count = std::min(data.test.count, options->held_out);
  return pipeline::Job{*options, std::move(data)};
}

/// Prints and writes what came out.
int Pipeline::finish(const Job& job, const Result& runs, bool first) {
  if (!first) return EXIT_SUCCESS;
  const pipeline::Options& options = job.options;
  train::Outputs write(train::complain<Pipeline>);
  if (options.json != "-") write([&] { train::print(stdout, pipeline::format_table(options, runs)); });
  if (!options.json.empty()) write([&] { pipeline::write_json(options, runs); });
  if (!options.plot.empty()) write([&] { pipeline::write_plot(options, runs); });
  if (!write.all_written()) return train::bad_input;
  if (std::all_of(runs.begin(), runs.end(), [](const pipeline::Run& run) { return run.same_loss; }))
    return EXIT_SUCCESS;
  train::complain<Pipeline>("the stages know different losses; this is a bug");
  return train::failed;
}

}  // namespace

int main(int argc, char** argv) { return train::launch<Pipeline>(argc, argv); }

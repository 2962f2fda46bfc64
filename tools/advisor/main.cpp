// SPDX-License-Identifier: Apache-2.0
// tools/advise: what a step will take with each method. docs/advice.md has the formulas.

#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "../train/did_you_mean.hpp"
#include "../train/to_width.hpp"
#include "figures.hpp"
#include "options.hpp"
#include "report.hpp"
#include "terse/core/hash.hpp"
#include "terse/transport/thread.hpp"
#ifdef TERSE_HAVE_MPI
#include "terse/transport/mpi.hpp"
#endif

namespace advise {
namespace {

// The rehearsal's messages on the slowest network that anybody trains on.
constexpr std::chrono::milliseconds deadline = std::chrono::minutes(10);

std::vector<Method> chosen(const Options& options) {
  std::vector<Method> all = adam_methods();
  for (std::vector<Method>& more : std::array{sgd_methods(), local_methods(options.period), gossip_methods()})
    std::move(more.begin(), more.end(), std::back_inserter(all));
  if (options.methods.empty()) return all;
  std::string listed;
  std::vector<std::string> names;
  for (const Method& method : all) {
    listed += (listed.empty() ? "" : ", ") + method.name;
    names.push_back(method.name);
  }
  std::vector<std::string> wanted;
  for (const std::string& name : options.methods) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Method& method) { return method.name == name; });
    if (found == all.end())
      throw input_error("--methods: '" + name + "' is none of " + listed + train::did_you_mean(name, names));
    wanted.push_back(name);
    wanted.push_back(found->dense);  // to compare it with
  }
  std::erase_if(all, [&](const Method& method) {
    return std::find(wanted.begin(), wanted.end(), method.name) == wanted.end();
  });
  return all;
}

/// How many ranks run on this host, which its name tells from others.
terse::predict::Node node_of(terse::AnyTransport& transport) {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  const std::uint64_t mine = terse::mix_hash(0, name);
  terse::Assembly<std::uint64_t, terse::AnyTransport> gather(transport);
  const auto all = gather(transport, mine, terse::Phase::setup);
  return {static_cast<int>(std::count(all.begin(), all.end(), mine)),
          static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))};
}

void advise(const Options& options, terse::AnyTransport transport) {
  namespace predict = terse::predict;
  Advice advice{.ranks = transport.size(),
                .elements = options.layout.range().elements(),
                .segments = options.layout.segments().size(),
                .gradient = options.gradient,
                .measured = !options.network};
  if (options.network) {
    advice.network = predict::ideal_network(options.network->latency, options.network->bandwidth);
  } else {
    advice.network = predict::measure_network(transport);
    advice.node = node_of(transport);
  }
  // Large enough for the ring, where the whole is: topology/by_size.hpp.
  const terse::index_t rehearsed =
      std::max(options.rehearsed, std::min(options.layout.size(), terse::index_t{131072} * transport.size()));
  const Setting setting{transport, options.layout, shrunk(options.layout, rehearsed), options.gradient};
  const bool terminal = isatty(STDERR_FILENO) != 0;
  for (const Method& method : chosen(options)) {
    if (transport.rank() == 0)
      std::fprintf(stderr, terminal ? "\rrehearsing %-30s" : "rehearsing %s\n", method.name.c_str());
    const Figures figures = method.rehearse(setting);
    advice.add(method, figures);
  }
  if (transport.rank() != 0) return;
  if (terminal) std::fprintf(stderr, "\r%41s\r", "");
  std::fputs((options.json ? json(advice) : report(advice)).c_str(), stdout);
}

/// Whether a launcher has started this process as one of several.
bool under_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

int over_mpi([[maybe_unused]] int& argc, [[maybe_unused]] char**& argv) {
#ifdef TERSE_HAVE_MPI
  return terse::Mpi::run(
      argc, argv,
      [&](terse::Mpi& mpi) {
        const Options options = parse(argc, argv);
        if (options.ranks != 0) throw input_error("--ranks is for threads; mpirun sets the number of ranks");
        if (!options.help)
          advise(options, terse::AnyTransport(mpi.split(0, mpi.rank())));
        else if (mpi.rank() == 0)
          train::print_help(stdout, usage);
      },
      deadline);
#else
  throw input_error("this program was built without MPI; without mpirun its ranks are threads");
#endif
}

int over_threads(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.help)
    train::print_help(stdout, usage);
  else
    terse::ThreadGroup(options.ranks == 0 ? 2 : options.ranks, deadline).run([&](terse::Threads& transport) {
      advise(options, terse::AnyTransport(transport.split(0, transport.rank())));
    });
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace advise

int main(int argc, char** argv) {
  try {
    return advise::under_mpi() ? advise::over_mpi(argc, argv) : advise::over_threads(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "advise: %s\n", failure.what());
    return 2;
  }
}

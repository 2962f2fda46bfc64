// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "device.hpp"
#include "idx.hpp"
#include "method.hpp"
#include "modelled.hpp"

namespace train {

/// Whether ranks are threads of one process or the processes of MPI, and what messages between GPUs go over: NCCL, or the
/// host, which `threads` and `mpi` do, too. `automatic`: processes where there are several, and NCCL where it can be.
enum class Transport { automatic, threads, mpi, nccl, staged };
enum class Topology { scatter_gather, ring, all_gather };
enum class Graph {
  ring,
  mesh,
  torus,
  star,
  complete,
  hypercube,
  exponential,
  symmetric_exponential,
  one_peer_exponential,
  one_peer_hypercube,
  random_matching
};
enum class RateSchedule { cosine, constant };
enum class Scale { rms, mean_abs };
enum class Granularity { segment, block, whole };
enum class BiasCorrection { none, first_stage };
enum class NonFinite { raise, skip, zero };
enum class InnerBuffers { keep, reset, average };
enum class LayerKind { dense, sign, top_k, low_rank };

/// The word for a value on the command line and in reports, such as "one-bit-adam".
inline const char* name(const Method& method) { return method.name; }
const char* name(Transport value);
const char* name(Device value);
const char* name(Topology value);
const char* name(Graph value);
const char* name(RateSchedule value);
const char* name(Scale value);
const char* name(Granularity value);
const char* name(BiasCorrection value);
const char* name(NonFinite value);
const char* name(InnerBuffers value);
const char* name(LayerKind value);
const char* name(Inputs value);

/// How the momenta travel of layers whose names match, see terse::matches.
struct LayerRule {
  std::string pattern;
  LayerKind kind;
};

/// The command line, checked. The defaults are those of `--help`.
struct Options {
  std::vector<const Method*> optimizers{&method("adam"), &method("one-bit-adam")};  ///< no two alike
  std::string model = "mlp";                                                        ///< "mlp" or "cnn"
  std::string data = default_data_directory;
  Inputs inputs = Inputs::normalized;
  /// Alpha of the Dirichlet distribution of each rank's labels, see label_skew.hpp; nothing: all ranks see alike ones.
  std::optional<double> label_skew;

  int ranks = 4;             ///< 1 to 64
  bool ranks_given = false;  ///< under MPI the job's size counts, and a `--ranks` that differs is a mistake
  Transport transport = Transport::automatic;
  Device device = Device::cpu;
  int threads_per_rank = 1;  ///< 1 to 1024: of its optimizer; the model has one
  double deadline = 60;      ///< seconds
  Modelled modelled;

  int epochs = 10;
  std::int64_t batch = 64;             ///< pictures per rank and step
  double learning_rate = 1e-3;         ///< of the Adam family
  double lamb_learning_rate = 0.01;    ///< of lamb and one-bit-lamb
  double sgd_learning_rate = 0.05;     ///< of the SGD family
  double sign_learning_rate = 3e-4;    ///< of sign-sgd, demo, distributed-lion and distro
  double momentum = 0.9;               ///< of the SGD family, 0 to below 1
  double learning_rate_warmup = 0.05;  ///< share of all steps, 0 to 1
  RateSchedule rate_schedule = RateSchedule::cosine;
  double weight_decay = 0;
  std::optional<double> clip_norm;
  NonFinite on_non_finite = NonFinite::raise;
  std::uint64_t seed = 1;

  double warmup_fraction = 0.15;  ///< share of all steps that are dense, or in which a ratio falls, 0 to 1
  /// Share of a matrix that top-k keeps, above 0 to 1; each method has a default of its own.
  std::optional<double> ratio;
  Topology topology = Topology::scatter_gather;
  Scale scale = Scale::rms;
  Granularity granularity = Granularity::segment;
  BiasCorrection bias_correction = BiasCorrection::none;
  double update_clip = 10;        ///< may be infinite
  double most_masked = 0.01;      ///< largest share of elements that a freeze may mask, 0 to 1
  std::vector<LayerRule> layers;  ///< of one-bit-adam: the first that matches counts; none: signs everywhere
  // Of zero-one-adam.
  std::int64_t variance_updates = 16;  ///< exact averages after which they become half as many, at least 1
  double local_interval = 0.1;         ///< share of all steps after which meetings do, above 0 to 1
  std::int64_t most_local_steps = 4;   ///< from one meeting to the next, at least 1

  Graph graph = Graph::symmetric_exponential;
  std::int64_t average_every = 0;  ///< steps; 0: never
  /// Above 0 to 1; each method that compresses has a default of its own.
  std::optional<double> consensus_rate;
  std::optional<double> moniqua_bound;  ///< above 0

  // Of local updates. Methods have defaults of their own: see period_of and so on.
  std::optional<std::int64_t> period;         ///< steps, at least 1
  std::optional<double> outer_learning_rate;  ///< above 0
  std::optional<double> outer_momentum;       ///< 0 to below 1
  std::optional<InnerBuffers> inner_buffers;
  std::optional<double> average_until;    ///< share of all steps, 0 to 1
  std::optional<double> pullback;         ///< 0 to 1
  std::optional<double> anchor_momentum;  ///< 0 to below 1
  std::optional<double> lattice_step;     ///< above 0
  std::int64_t fragments = 4;             ///< of streaming-diloco, at least 1
  std::int64_t fragment_delay = 1;        ///< of the same, steps, at most the period
  double local_share = 0.5;               ///< of the same, 0 to 1

  std::string json, csv, plot;        ///< files to write, or empty
  std::string trace;                  ///< file to write, of the one optimizer, or empty
  std::string checkpoint;             ///< directory, or empty
  std::int64_t checkpoint_every = 0;  ///< steps; 0: at the end only
  std::string resume;                 ///< directory, or empty
  bool elastic = false;               ///< another number of ranks may have saved what is resumed
  bool resume_if_any = false;         ///< `auto`: of `checkpoint`, and from the beginning where it has none
  bool quiet = false;
};

/// The highest learning rate of a method, and the option that sets it, without its dashes.
struct HighestRate {
  const char* option;
  double given;
  double rate;
};
HighestRate rate_of(const Options& options, const Method& method);

// What is in force, given or not. Methods that don't have such a thing are not to be asked.
double ratio_of(const Options& options, const Method& method);
double consensus_rate_of(const Options& options,
                         const Method& method);  ///< 1 where packets are not compressed
double moniqua_bound_of(const Options& options);
std::int64_t period_of(const Options& options);
double outer_learning_rate_of(const Options& options, const Method& method);
double outer_momentum_of(const Options& options, const Method& method);  ///< depends on the ranks for BMUF
InnerBuffers inner_buffers_of(const Options& options);
double average_until_of(const Options& options, const Method& method);  ///< 0 for all but post-local-sgd
double pullback_of(const Options& options);
double anchor_momentum_of(const Options& options);
double lattice_step_of(const Options& options);

/// No wait of a rank for another lasts longer.
std::chrono::milliseconds deadline_of(const Options& options);

/// Whether the ranks are the processes that mpirun has started, `world` of them; else they are threads of this one. Throws
/// input_error where the transport contradicts that.
bool ranks_are_processes(const Options& options, int world);

/// The name of what a method's messages go over: of its graph, or of its topology, or "mailbox".
const char* route_of(const Options& options, const Method& method);

bool runs_on(Device device, const Method& method);

/// Whose command line it is. The quickstart's trainer has few optimizers and says so, and the last of several values
/// counts: its script gives some of its own before the user's.
enum class Program { train, quickstart_trainer };

/// Reads the command line. Writes the text of `--help` or `--version` to `out` and returns nothing where that
/// was asked for: the program is then done, with exit code 0. Throws input_error with one clear line for
/// whatever is unknown, malformed or out of range. Looks at no file.
std::optional<Options> parse_options(int argc, const char* const* argv, std::FILE* out = stdout,
                                     Program program = Program::train);

/// Throws input_error with one clear line if the data directory or the directory to resume from is missing,
/// an output could not be written at the end, or the picture could not be drawn. So hours of training are not
/// lost to a slip of the pen. Creates nothing. Under MPI, the outputs concern rank 0 only.
void check_files(const Options& options, bool outputs = true);

}  // namespace train

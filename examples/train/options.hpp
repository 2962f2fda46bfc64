// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "device.hpp"
#include "idx.hpp"
#include "modelled.hpp"

namespace train {

enum class Optimizer {
  adam,
  one_bit_adam,
  zero_one_adam,
  momentum_sgd,
  error_feedback_sgd,
  dist_error_feedback_sgd,
  sign_sgd,
  deep_gradient_compression,
  power_sgd,
  quantized_sgd,
  ef21_sgd,
  demo,
  distributed_lion,
  lamb,
  one_bit_lamb,
  muon,
  // Local updates from here on, see is_local.
  local_sgd,
  post_local_sgd,
  slowmo,
  slowmo_sgp,
  bmuf_classical,
  bmuf_nesterov,
  diloco,
  streaming_diloco,
  overlap_local_sgd,
  cocod_sgd,
  // Swarms from here on, see is_swarm.
  swarm_sgd,
  swarm_sgd_lattice,
  swarm_sgd_non_blocking,
  async_swarm_sgd,
  // Decentralized from here on, see is_decentralized.
  d_sgd,
  awc_d_sgd,
  cta_d_sgd,
  dm_sgd,
  da_dm_sgd,
  awc_dm_sgd,
  qg_dm_sgd,
  decentlam,
  momentum_consensus,
  d2,
  d2_dm_sgd,
  gradient_tracking,
  momentum_tracking,
  stochastic_gradient_push,
  choco_sgd,
  deep_squeeze,
  dcd_sgd,
  beer,
  moniqua_sgd
};
enum class Transport { threads, mpi };
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
enum class NonFinite { raise, skip, zero };
enum class InnerBuffers { keep, reset, average };
enum class LayerKind { dense, sign, top_k, low_rank };

/// The word for a value on the command line and in reports, such as "one-bit-adam".
const char* name(Optimizer value);
const char* name(Transport value);
const char* name(Device value);
const char* name(Topology value);
const char* name(Graph value);
const char* name(RateSchedule value);
const char* name(Scale value);
const char* name(Granularity value);
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
  std::vector<Optimizer> optimizers{Optimizer::adam, Optimizer::one_bit_adam};  ///< no two alike
  std::string model = "mlp";                                                    ///< "mlp" or "cnn"
  std::string data = default_data_directory;
  Inputs inputs = Inputs::normalized;
  /// Alpha of the Dirichlet distribution of each rank's labels, see label_skew.hpp; nothing: all ranks see alike ones.
  std::optional<double> label_skew;

  int ranks = 4;             ///< 1 to 64
  bool ranks_given = false;  ///< under MPI the job's size counts, and a `--ranks` that differs is a mistake
  Transport transport = Transport::threads;
  Device device = Device::cpu;
  double deadline = 60;  ///< seconds
  Modelled modelled;

  int epochs = 10;
  std::int64_t batch = 64;             ///< pictures per rank and step
  double learning_rate = 1e-3;         ///< of the Adam family
  double lamb_learning_rate = 0.01;    ///< of lamb and one-bit-lamb
  double sgd_learning_rate = 0.05;     ///< of the SGD family
  double sign_learning_rate = 3e-4;    ///< of sign-sgd, demo and distributed-lion
  double momentum = 0.9;               ///< of the SGD family, 0 to below 1
  double learning_rate_warmup = 0.05;  ///< share of all steps, 0 to 1
  RateSchedule rate_schedule = RateSchedule::cosine;
  double weight_decay = 0;
  std::optional<double> clip_norm;
  NonFinite on_non_finite = NonFinite::raise;
  std::uint64_t seed = 1;

  double warmup_fraction = 0.15;  ///< share of all steps that are dense, or in which a ratio falls, 0 to 1
  /// Share of a matrix that top-k keeps, above 0 to 1; each optimizer has a default of its own.
  std::optional<double> ratio;
  Topology topology = Topology::scatter_gather;
  Scale scale = Scale::rms;
  Granularity granularity = Granularity::segment;
  double update_clip = 10;        ///< may be infinite
  std::vector<LayerRule> layers;  ///< of one-bit-adam: the first that matches counts; none: signs everywhere
  // Of zero-one-adam.
  std::int64_t variance_updates = 16;  ///< exact averages after which they become half as many, at least 1
  double local_interval = 0.1;         ///< share of all steps after which meetings do, above 0 to 1
  std::int64_t most_local_steps = 4;   ///< from one meeting to the next, at least 1

  Graph graph = Graph::symmetric_exponential;
  std::int64_t average_every = 0;  ///< steps; 0: never
  /// Above 0 to 1; each optimizer that compresses has a default of its own.
  std::optional<double> consensus_rate;
  std::optional<double> moniqua_bound;  ///< above 0

  // Of local updates. Each optimizer has defaults of its own: see period_of and so on.
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
  std::string checkpoint;             ///< directory, or empty
  std::int64_t checkpoint_every = 0;  ///< steps; 0: at the end only
  std::string resume;                 ///< directory, or empty
  bool elastic = false;               ///< another number of ranks may have saved what is resumed
  bool resume_if_any = false;         ///< `auto`: of `checkpoint`, and from the beginning where it has none
  bool quiet = false;
};

/// The highest learning rate of an optimizer, and the option that sets it, without its dashes.
struct HighestRate {
  const char* option;
  double given;
  double rate;
};
HighestRate rate_of(const Options& options, Optimizer optimizer);

/// The ratio in force; 1 where none is chosen.
double ratio_of(const Options& options, Optimizer optimizer);

/// The consensus rate in force; 1 where packets are not compressed.
double consensus_rate_of(const Options& options, Optimizer optimizer);
double moniqua_bound_of(const Options& options, Optimizer optimizer);

/// Whether ranks step on their own and meet now and then.
bool is_local(Optimizer optimizer);
/// Whether ranks meet in an outer step that has a rate and a momentum of its own.
bool has_outer_step(Optimizer optimizer);
/// Whether ranks meet all at once, and may then agree about momenta and variances, too.
bool has_inner_buffers(Optimizer optimizer);
/// Whether ranks meet in pairs.
bool is_swarm(Optimizer optimizer);
/// Whether averages are taken up in a later step than they were started in.
bool averages_late(Optimizer optimizer);

// What is in force for local updates, given or not. Those who don't have such a thing are not to be asked.
std::int64_t period_of(const Options& options, Optimizer optimizer);
double outer_learning_rate_of(const Options& options, Optimizer optimizer);
double outer_momentum_of(const Options& options, Optimizer optimizer);  ///< depends on the ranks for BMUF
InnerBuffers inner_buffers_of(const Options& options, Optimizer optimizer);
double average_until_of(const Options& options, Optimizer optimizer);  ///< 0 for all but post-local-sgd
double pullback_of(const Options& options, Optimizer optimizer);
double anchor_momentum_of(const Options& options, Optimizer optimizer);
double lattice_step_of(const Options& options, Optimizer optimizer);

/// What the optimizer's compressed steps go over; dense steps go over scatter-gather.
Topology topology_of(const Options& options, Optimizer optimizer);

/// Whether ranks mix parameters of their own with those of their neighbours in `options.graph`.
bool is_decentralized(Optimizer optimizer);
/// Whether ranks hold parameters of their own, so that it is their mean that is looked at in the end.
bool keeps_own_models(Optimizer optimizer);
/// Whether SGD's momentum is in it.
bool uses_momentum(Optimizer optimizer);

/// The name of what an optimizer's messages go over: of its graph, or of its topology, or "mailbox".
const char* route_of(const Options& options, Optimizer optimizer);

/// What a decentralized optimizer asks of a graph, beyond that it keeps the mean of the ranks. Recipes say the same
/// and would not compile without, see gossip.hpp.
enum class GraphNeeds { nothing, fixed, fixed_symmetric };
GraphNeeds graph_needs(Optimizer optimizer);

/// Whether the optimizer runs there. Averages of gradients do, but for largest elements, low ranks and LAMB.
bool runs_on(Device device, Optimizer optimizer);

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

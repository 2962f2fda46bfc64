// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string_view>
#include <system_error>
#include <vector>

#include "any_graph.hpp"
#include "command_line.hpp"
#include "gnuplot.hpp"
#include "help.hpp"
#include "output.hpp"
#include "terse/core/version.hpp"
#include "words.hpp"

namespace train {
namespace {

Optimizer optimizer_of(const std::string& given) {
  for (const Word<Optimizer>& entry : optimizer_synonyms)
    if (given == entry.word) return entry.value;
  return value_of(optimizer_words, "--optimizers", given);
}

std::vector<Optimizer> optimizers_of(const std::string& given) {
  std::vector<Optimizer> optimizers;
  for (std::size_t begin = 0; begin <= given.size();) {
    const std::size_t end = std::min(given.find(',', begin), given.size());
    const Optimizer one = optimizer_of(given.substr(begin, end - begin));
    if (std::find(optimizers.begin(), optimizers.end(), one) != optimizers.end())
      throw input_error(fmt::format("--optimizers: '{}' is named twice", name(one)));
    optimizers.push_back(one);
    begin = end + 1;
  }
  return optimizers;
}

std::vector<LayerRule> layers_of(const std::string& given) {
  std::vector<LayerRule> rules;
  for (std::size_t begin = 0; begin <= given.size();) {
    const std::size_t end = std::min(given.find(',', begin), given.size());
    const std::string one = given.substr(begin, end - begin);
    const std::size_t equals = one.find('=');
    if (equals == std::string::npos || equals == 0)
      throw input_error(fmt::format("--layers: '{}' is not PATTERN=KIND, such as *.bias=dense; kinds are {}",
                                    one, all_words(layer_kind_words, ", ")));
    rules.push_back({one.substr(0, equals), value_of(layer_kind_words, "--layers", one.substr(equals + 1))});
    begin = end + 1;
  }
  return rules;
}

Straggler straggler_of(const std::string& given) {
  const std::size_t colon = std::min(given.find(':'), given.size());
  const std::optional<int> rank = number_of<int>(given.substr(0, colon));
  const std::optional<double> factor = number_of<double>(given.substr(std::min(colon + 1, given.size())));
  if (!rank || *rank < 0 || !factor || !(*factor >= 1 && *factor <= 1000))
    throw input_error(
        fmt::format("--straggler: '{}' is not RANK:FACTOR, a rank and a number from 1 to 1000", given));
  return {*rank, *factor};
}

void add_options(CLI::App& app, Options& o) {
  // Recipes hold floats, and make others of these; all of that stays within what counts as finite.
  const auto positive = [](double value) { return value >= 1e-30 && value <= 1e18; };
  const auto not_negative = [=](double value) { return value == 0 || positive(value); };
  const auto share = [](double value) { return value >= 0 && value <= 1; };
  const auto part = [](double value) { return value > 0 && value <= 1 && static_cast<float>(value) > 0; };
  const auto below_1 = [](double value) { return value >= 0 && value < 1 && static_cast<float>(value) < 1; };
  constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
  const auto count = [](std::int64_t most) {
    return [most](std::int64_t value) { return value >= 1 && value <= most; };
  };

  std::string group = "Job";
  const auto in_group = [&group](CLI::Option* option) { option->group(group); };
  in_group(app.add_option_function<std::string>(
                  "--optimizers", [&o](const std::string& given) { o.optimizers = optimizers_of(given); },
                  "some of those below, separated by commas")
               ->type_name("LIST")
               ->default_str("adam,one-bit-adam"));
  in_group(
      add_choice(app, "--model", model_words, o.model, "784-256-128-10, or a small convolutional network"));
  in_group(add_file(app, "--data", o.data, "DIR", "IDX files of Fashion-MNIST or alike, gzip or not")
               ->default_str(default_data_directory));
  in_group(add_choice(app, "--inputs", inputs_words, o.inputs, "mean 0 and deviation 1, or from 0 to 1"));
  const auto label_skew = [&o](const std::string& given) {
    const std::optional<double> value = number_of<double>(given);
    if (!value || !(*value >= 1e-6 && (*value <= 1e6 || std::isinf(*value))))
      throw input_error(
          fmt::format("--label-skew: '{}' is not a number from 0.000001 to 1000000, or inf", given));
    o.label_skew = std::isinf(*value) ? std::nullopt : value;
  };
  in_group(
      app.add_option_function<std::string>(
             "--label-skew", label_skew,
             "each rank's labels are a mixture from Dirichlet(ALPHA): the smaller, the fewer labels [inf]")
          ->type_name("ALPHA"));
  in_group(add_number<std::uint64_t>(
               app, "--seed", o.seed, [](std::uint64_t) { return true; },
               "a whole number from 0 to 18446744073709551615", "1", "of initial parameters and shuffles")
               ->type_name("N"));

  group = "Ranks";
  in_group(add_number<int>(
               app, "--ranks", o.ranks,
               [&o](int value) {
                 o.ranks_given = true;
                 return value >= 1 && value <= 64;
               },
               "a whole number from 1 to 64", "4", "data-parallel workers; under mpi, mpirun -n decides")
               ->type_name("N"));
  in_group(add_choice(app, "--transport", transport_words, o.transport,
                      "ranks are threads of this process, or processes under mpirun"));
  in_group(add_choice(app, "--device", device_words, o.device,
                      "where models and optimizers are; ranks are dealt out to GPUs"));
  in_group(add_number<double>(
               app, "--deadline", o.deadline, [](double value) { return value > 0 && std::isfinite(value); },
               "a number of seconds above 0", "60", "give up on a rank that is silent for so long")
               ->type_name("SECONDS"));

  group = "A slow network, modelled";
  in_group(add_number<double>(
               app, "--delay", o.modelled.delay, [](double value) { return value >= 0 && value <= 1e6; },
               "a number of milliseconds from 0 to 1000000", "", "each message of a step takes so long [0]")
               ->type_name("MS"));
  in_group(add_number<double>(
               app, "--bandwidth", o.modelled.bandwidth,
               [](double value) { return value >= 0.001 && value <= 1e9; },
               "a number of Mbit/s from 0.001 to 1000000000", "", "of each rank's link, each way [unlimited]")
               ->type_name("MBIT"));
  in_group(app.add_option_function<std::string>(
                  "--straggler",
                  [&o](const std::string& given) { o.modelled.straggler = straggler_of(given); },
                  "a rank whose gradients take FACTOR times as long: it sleeps")
               ->type_name("RANK:FACTOR"));

  group = "Training";
  in_group(add_number<int>(app, "--epochs", o.epochs, count(100'000), "a whole number from 1 to 100000", "10",
                           "passes over the training set")
               ->type_name("N"));
  in_group(add_number<std::int64_t>(app, "--batch", o.batch, count(100'000),
                                    "a whole number from 1 to 100000", "64", "pictures per rank and step")
               ->type_name("N"));
  in_group(add_number<double>(
               app, "--learning-rate", o.learning_rate, positive, "a number from 1e-30 to 1e18", "0.001",
               "highest rate of adam, one-bit-adam, zero-one-adam, muon and [streaming-]diloco")
               ->type_name("RATE"));
  in_group(add_number<double>(app, "--lamb-learning-rate", o.lamb_learning_rate, positive,
                              "a number from 1e-30 to 1e18", "0.01", "highest rate of lamb and one-bit-lamb")
               ->type_name("RATE"));
  in_group(add_number<double>(app, "--sgd-learning-rate", o.sgd_learning_rate, positive,
                              "a number from 1e-30 to 1e18", "0.05", "highest rate of all others")
               ->type_name("RATE"));
  in_group(add_number<double>(
               app, "--sign-learning-rate", o.sign_learning_rate, positive, "a number from 1e-30 to 1e18",
               "0.0003",
               "highest rate of sign-sgd, demo and distributed-lion, which move every element by it")
               ->type_name("RATE"));
  in_group(add_number<double>(app, "--momentum", o.momentum, below_1, "a number from 0 to below 1", "0.9",
                              "of all that --sgd-learning-rate is for, where they have any, and of sign-sgd")
               ->type_name("BETA"));
  in_group(add_number<double>(app, "--learning-rate-warmup", o.learning_rate_warmup, share,
                              "a share from 0 to 1", "0.05", "share of the steps in which the rate rises")
               ->type_name("SHARE"));
  in_group(add_choice(app, "--rate-schedule", rate_schedule_words, o.rate_schedule,
                      "from there it falls to 0 like a cosine, or stays"));
  in_group(add_number<double>(app, "--weight-decay", o.weight_decay, not_negative,
                              "0 or a number from 1e-30 to 1e18", "0", "decoupled weight decay")
               ->type_name("RATE"));
  in_group(add_number<double>(app, "--clip-norm", o.clip_norm, positive, "a number from 1e-30 to 1e18", "",
                              "bound on the gradient's norm over all ranks [none]")
               ->type_name("NORM"));
  in_group(add_choice(app, "--on-non-finite", non_finite_words, o.on_non_finite,
                      "what all ranks do when one has NaN or infinity in its gradient"));

  group = "Compression";
  in_group(add_number<double>(app, "--warmup-fraction", o.warmup_fraction, share, "a share from 0 to 1",
                              "0.15",
                              "of steps before one-bit-adam and one-bit-lamb compress and zero-one-adam's "
                              "ranks step alone; while deep-gradient-compression's ratio falls")
               ->type_name("SHARE"));
  in_group(add_number<double>(app, "--ratio", o.ratio, part, "a share above 0, to 1", "",
                              "share of each matrix that deep-gradient-compression [0.005] and ef21-sgd "
                              "[0.05] send, and of its cosine waves that demo does [0.0078125]")
               ->type_name("SHARE"));

  group = "Compression of one-bit-adam";
  in_group(
      add_choice(app, "--topology", topology_words, o.topology, "how the compressed momentum is averaged"));
  in_group(add_choice(app, "--scale", scale_words, o.scale, "magnitude that a sign stands for"));
  in_group(add_choice(app, "--granularity", granularity_words, o.granularity,
                      "one scale for each tensor, each 4096 elements, or all"));
  in_group(add_number<double>(
               app, "--update-clip", o.update_clip,
               [=](double value) { return positive(value) || (value > 0 && std::isinf(value)); },
               "a number from 1e-30 to 1e18, or inf", "10",
               "bound on |momentum| / sqrt(variance) after the freeze, or inf; of one-bit-lamb and "
               "zero-one-adam, too")
               ->type_name("BOUND"));

  in_group(app.add_option_function<std::string>(
                  "--layers", [&o](const std::string& given) { o.layers = layers_of(given); },
                  "how layers travel, by patterns of their names, of which the first that matches counts: "
                  "dense, sign, "
                  "top-k (1 %) or low-rank (4 columns) [*=sign]")
               ->type_name("PATTERN=KIND,..."));

  group = "Compression of zero-one-adam";
  in_group(add_number<std::int64_t>(app, "--variance-updates", o.variance_updates, count(any),
                                    "a whole number above 0", "16",
                                    "after each N exact averages there are half as many")
               ->type_name("N"));
  in_group(
      add_number<double>(app, "--local-interval", o.local_interval, part, "a share above 0, to 1", "0.1",
                         "after each such share of the steps, once ranks step alone, they meet half as often")
          ->type_name("SHARE"));
  in_group(add_number<std::int64_t>(app, "--most-local-steps", o.most_local_steps, count(any),
                                    "a whole number above 0", "4", "but after every N-th step at least")
               ->type_name("N"));

  group = "Decentralized optimizers";
  in_group(add_choice(app, "--graph", graph_words, o.graph, "who mixes with whom"));
  in_group(add_number<std::int64_t>(app, "--average-every", o.average_every, count(any),
                                    "a whole number above 0", "",
                                    "every N-th step averages all ranks exactly instead [never]")
               ->type_name("N"));
  in_group(
      add_number<double>(app, "--consensus-rate", o.consensus_rate, part, "a number above 0, to 1", "",
                         "how far choco-sgd [0.4], deep-squeeze [0.4] and beer [0.4] follow their neighbours")
          ->type_name("RATE"));
  in_group(add_number<double>(app, "--moniqua-bound", o.moniqua_bound, positive,
                              "a number from 1e-30 to 1e18", "",
                              "of moniqua-sgd: how far neighbours' parameters may be apart [5 times rate]")
               ->type_name("BOUND"));

  group = "Local updates";
  in_group(add_number<std::int64_t>(app, "--period", o.period, count(any), "a whole number above 0", "",
                                    "ranks meet after every N-th step [8]")
               ->type_name("N"));
  in_group(add_number<double>(app, "--outer-learning-rate", o.outer_learning_rate, positive,
                              "a number from 1e-30 to 1e18", "",
                              "of the outer step of slowmo [1], bmuf [1] and [streaming-]diloco [0.7]")
               ->type_name("RATE"));
  in_group(add_number<double>(app, "--outer-momentum", o.outer_momentum, below_1,
                              "a number from 0 to below 1", "",
                              "of slowmo [0.5], bmuf [1 - 1 / ranks] and [streaming-]diloco [0.9]")
               ->type_name("BETA"));
  in_group(add_choice(app, "--inner-buffers", inner_buffers_words, o.inner_buffers,
                      "what becomes of momenta and variances where ranks meet at once [keep]"));
  in_group(add_number<double>(app, "--average-until", o.average_until, share, "a share from 0 to 1", "",
                              "share of the steps in which post-local-sgd averages gradients [0.5]")
               ->type_name("SHARE"));
  in_group(add_number<double>(app, "--pullback", o.pullback, share, "a number from 0 to 1", "",
                              "of overlap-local-sgd to its anchor [0.6]")
               ->type_name("SHARE"));
  in_group(add_number<double>(app, "--anchor-momentum", o.anchor_momentum, below_1,
                              "a number from 0 to below 1", "", "of overlap-local-sgd [0.7]")
               ->type_name("BETA"));
  in_group(add_number<std::int64_t>(app, "--fragments", o.fragments, count(65536),
                                    "a whole number from 1 to 65536", "4",
                                    "of streaming-diloco, which are sent in steps of their own")
               ->type_name("N"));
  in_group(add_number<std::int64_t>(
               app, "--fragment-delay", o.fragment_delay, [](std::int64_t steps) { return steps >= 0; },
               "a whole number of 0 or more", "1", "steps in which a fragment of streaming-diloco travels")
               ->type_name("N"));
  in_group(add_number<double>(app, "--local-share", o.local_share, share, "a number from 0 to 1", "0.5",
                              "of a rank's own parameters where a fragment of streaming-diloco comes in")
               ->type_name("SHARE"));
  in_group(
      add_number<double>(app, "--lattice-step", o.lattice_step, positive, "a number from 1e-30 to 1e18", "",
                         "of swarm-sgd-lattice; 127 of them are as far as ranks may be apart [0.02 times "
                         "rate and period]")
          ->type_name("STEP"));

  group = "Output";
  in_group(add_file(app, "--json", o.json, "FILE", "write all figures"));
  in_group(
      add_file(app, "--csv", o.csv, "FILE",
               "write loss and bytes of every step; after which step bytes of late means leave depends on "
               "timing"));
  in_group(add_file(app, "--plot", o.plot, "FILE.svg", "draw loss against steps and bytes (with gnuplot)"));
  in_group(add_file(app, "--checkpoint", o.checkpoint, "DIR", "save the state of all ranks"));
  in_group(add_number<std::int64_t>(app, "--checkpoint-every", o.checkpoint_every, count(any),
                                    "a whole number above 0", "",
                                    "save every N steps, too, not at the end only")
               ->type_name("N"));
  in_group(add_file(app, "--resume", o.resume, "DIR",
                    "go on from what --checkpoint saved; auto: if there is any"));
  in_group(
      app.add_flag("--elastic", o.elastic,
                   "--resume what another number of ranks has saved, too: each step's pictures stay as many "
                   "and are shared out anew"));
  in_group(app.add_flag("--quiet", o.quiet, "no progress, only the table"));

  group = "Help";
  in_group(app.set_help_flag("-h,--help", "print this and exit"));
  in_group(app.set_version_flag(
      "--version",
      fmt::format("terse {}.{}.{}", TERSE_VERSION_MAJOR, TERSE_VERSION_MINOR, TERSE_VERSION_PATCH),
      "print the version and exit"));

  app.footer(help_footer);
}

/// What is about optimizers that the quickstart's trainer does not have.
void leave_out_of_help(CLI::App& app) {
  for (CLI::Option* const option : app.get_options())
    for (const char* group : {"Compression of zero-one-adam", "Decentralized optimizers", "Local updates"})
      if (option->get_group() == group) option->group("");
  app.footer(quickstart_footer);
}

// Like access(2), which also knows of read-only file systems and of what root may do.
bool may_write(const std::filesystem::path& directory) { return access(directory.c_str(), W_OK | X_OK) == 0; }

void check_output_directory(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  std::error_code fault;
  std::filesystem::path nearest = std::filesystem::absolute(path, fault);
  while (!std::filesystem::exists(nearest, fault) && nearest.has_relative_path())
    nearest = nearest.parent_path();
  if (!std::filesystem::is_directory(nearest, fault))
    throw input_error(fmt::format("{}: '{}' is not a directory", option, nearest.string()));
  if (!may_write(nearest))
    throw input_error(fmt::format("{}: the directory '{}' is not writable", option, nearest.string()));
}

}  // namespace

const char* name(Optimizer value) { return word_of(optimizer_words, value); }
const char* name(Transport value) { return word_of(transport_words, value); }
const char* name(Device value) { return word_of(device_words, value); }
const char* name(Topology value) { return word_of(topology_words, value); }
const char* name(Graph value) { return word_of(graph_words, value); }
const char* name(RateSchedule value) { return word_of(rate_schedule_words, value); }
const char* name(Scale value) { return word_of(scale_words, value); }
const char* name(Granularity value) { return word_of(granularity_words, value); }
const char* name(NonFinite value) { return word_of(non_finite_words, value); }
const char* name(LayerKind value) { return word_of(layer_kind_words, value); }
const char* name(InnerBuffers value) { return word_of(inner_buffers_words, value); }
const char* name(Inputs value) { return word_of(inputs_words, value); }

HighestRate rate_of(const Options& options, Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::adam:
    case Optimizer::one_bit_adam:
    case Optimizer::zero_one_adam:
    case Optimizer::muon:
    case Optimizer::diloco:
    case Optimizer::streaming_diloco:
      return {"learning-rate", options.learning_rate, options.learning_rate};
    case Optimizer::lamb:
    case Optimizer::one_bit_lamb:
      return {"lamb-learning-rate", options.lamb_learning_rate, options.lamb_learning_rate};
    case Optimizer::sign_sgd:
    case Optimizer::demo:
    case Optimizer::distributed_lion:
      return {"sign-learning-rate", options.sign_learning_rate, options.sign_learning_rate};
    case Optimizer::error_feedback_sgd:
      // Momentum of 0.9 makes each gradient count ten times; this one has none. (Nor have some decentralized ones, but
      // between two mixtures a rank's own data must not lead it that far away.)
      return {"sgd-learning-rate", options.sgd_learning_rate,
              options.sgd_learning_rate / (1 - options.momentum)};
    default:
      return {"sgd-learning-rate", options.sgd_learning_rate, options.sgd_learning_rate};
  }
}

double ratio_of(const Options& options, Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::deep_gradient_compression:
      return options.ratio.value_or(0.005);
    case Optimizer::ef21_sgd:
      return options.ratio.value_or(0.05);
    case Optimizer::demo:
      return options.ratio.value_or(32.0 / 4096);
    default:
      return 1;
  }
}

double consensus_rate_of(const Options& options, Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::choco_sgd:
      return options.consensus_rate.value_or(0.4);
    case Optimizer::deep_squeeze:
      return options.consensus_rate.value_or(0.4);
    case Optimizer::beer:
      return options.consensus_rate.value_or(0.4);
    default:
      return 1;
  }
}

Topology topology_of(const Options& options, Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::one_bit_adam:
      return options.topology;
    case Optimizer::deep_gradient_compression:
    case Optimizer::ef21_sgd:
    case Optimizer::demo:
      return Topology::all_gather;
    default:
      return Topology::scatter_gather;
  }
}

bool is_local(Optimizer optimizer) {
  return optimizer >= Optimizer::local_sgd && optimizer < Optimizer::d_sgd;
}
bool has_outer_step(Optimizer optimizer) {
  return optimizer >= Optimizer::slowmo && optimizer <= Optimizer::streaming_diloco;
}
bool has_inner_buffers(Optimizer optimizer) {
  return optimizer >= Optimizer::local_sgd && optimizer <= Optimizer::diloco;
}
bool is_swarm(Optimizer optimizer) {
  return optimizer >= Optimizer::swarm_sgd && optimizer <= Optimizer::async_swarm_sgd;
}
bool averages_late(Optimizer optimizer) {
  return optimizer >= Optimizer::streaming_diloco && optimizer <= Optimizer::cocod_sgd;
}

std::int64_t period_of(const Options& options, Optimizer) { return options.period.value_or(8); }

double outer_learning_rate_of(const Options& options, Optimizer optimizer) {
  const bool outside = optimizer == Optimizer::diloco || optimizer == Optimizer::streaming_diloco;
  return options.outer_learning_rate.value_or(outside ? 0.7 : 1);
}

double outer_momentum_of(const Options& options, Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::bmuf_classical:
    case Optimizer::bmuf_nesterov:
      return options.outer_momentum.value_or(1 - 1.0 / options.ranks);
    case Optimizer::diloco:
    case Optimizer::streaming_diloco:
      return options.outer_momentum.value_or(0.9);
    default:
      return options.outer_momentum.value_or(0.5);
  }
}

InnerBuffers inner_buffers_of(const Options& options, Optimizer) {
  return options.inner_buffers.value_or(InnerBuffers::keep);
}

double average_until_of(const Options& options, Optimizer optimizer) {
  return optimizer == Optimizer::post_local_sgd ? options.average_until.value_or(0.5) : 0;
}

double pullback_of(const Options& options, Optimizer) { return options.pullback.value_or(0.6); }

double anchor_momentum_of(const Options& options, Optimizer) { return options.anchor_momentum.value_or(0.7); }

// Ranks drift apart by as much as they move between meetings, which both decide about.
double lattice_step_of(const Options& options, Optimizer optimizer) {
  return options.lattice_step.value_or(0.02 * options.sgd_learning_rate *
                                       static_cast<double>(period_of(options, optimizer)));
}

// As lattice_step_of; neighbours mix in every step.
double moniqua_bound_of(const Options& options, Optimizer) {
  return options.moniqua_bound.value_or(5 * options.sgd_learning_rate);
}

bool is_decentralized(Optimizer optimizer) {
  return optimizer >= Optimizer::d_sgd || optimizer == Optimizer::slowmo_sgp;
}

bool keeps_own_models(Optimizer optimizer) {
  // Ranks of 0/1 Adam do between meetings, and training may end there.
  return is_local(optimizer) || is_decentralized(optimizer) || optimizer == Optimizer::zero_one_adam;
}

bool uses_momentum(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::adam:
    case Optimizer::one_bit_adam:
    case Optimizer::zero_one_adam:
    case Optimizer::lamb:
    case Optimizer::one_bit_lamb:
    case Optimizer::muon:
    case Optimizer::demo:
    case Optimizer::distributed_lion:
    case Optimizer::diloco:
    case Optimizer::streaming_diloco:
      return false;
    default:
      return true;
  }
}

const char* route_of(const Options& options, Optimizer optimizer) {
  if (optimizer == Optimizer::async_swarm_sgd) return "mailbox";
  if (is_swarm(optimizer)) return name(Graph::random_matching);
  return is_decentralized(optimizer) ? name(options.graph) : name(topology_of(options, optimizer));
}

GraphNeeds graph_needs(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::decentlam:
    case Optimizer::momentum_consensus:
    case Optimizer::d2:
    case Optimizer::d2_dm_sgd:
      return GraphNeeds::fixed_symmetric;
    case Optimizer::choco_sgd:
    case Optimizer::dcd_sgd:
    case Optimizer::beer:
      return GraphNeeds::fixed;
    default:
      return GraphNeeds::nothing;
  }
}

bool runs_on(Device device, Optimizer optimizer) {
  if (device == Device::cpu) return true;
  if (keeps_own_models(optimizer)) return false;
  switch (optimizer) {
    case Optimizer::deep_gradient_compression:
    case Optimizer::power_sgd:
    case Optimizer::ef21_sgd:
    case Optimizer::demo:
    case Optimizer::distributed_lion:
    case Optimizer::lamb:
    case Optimizer::one_bit_lamb:
    case Optimizer::muon:
      return false;
    default:
      return true;
  }
}

namespace {

bool compresses_gossip(Optimizer kind) { return kind >= Optimizer::choco_sgd; }
bool pushes(Optimizer kind) {
  return kind == Optimizer::stochastic_gradient_push || kind == Optimizer::slowmo_sgp;
}
bool takes_exact_means(Optimizer kind) {
  return is_decentralized(kind) && graph_needs(kind) != GraphNeeds::fixed_symmetric && !pushes(kind) &&
         !compresses_gossip(kind);
}

/// Says what the library says at compile time of an optimizer on a graph, and what to use instead.
void check_graph(const Options& options, Optimizer kind) {
  const GraphNeeds needs = graph_needs(kind);
  if (satisfies(options.graph, needs)) return;
  std::string others;
  for (const Word<Graph>& entry : graph_words)
    if (satisfies(entry.value, needs)) others += (others.empty() ? "" : ", ") + std::string(entry.word);
  const char* const reason =
      needs == GraphNeeds::fixed
          ? "{0} keeps sums over its neighbours from step to step, and {1} is not fixed. Use one of {2}, or "
            "deep-squeeze on this graph"
          : "{0} diverges whatever the learning rate on graphs that are not fixed and symmetric, such as "
            "{1}. Use one of {2}, or qg-dm-sgd on this graph";
  throw input_error("--graph: " + fmt::format(fmt::runtime(reason), name(kind), name(options.graph), others));
}

void check_optimizer(const Options& options, Optimizer kind) {
  if (kind == Optimizer::one_bit_adam && !options.layers.empty()) {
    if (options.device != Device::cpu)
      throw input_error(
          "--layers: one-bit-adam with a compressor for each kind of layer runs on the CPU so far");
    if (options.topology != Topology::scatter_gather || options.granularity != Granularity::segment ||
        options.scale != Scale::rms)
      throw input_error(
          "--layers goes over scatter-gather, with one scale for each tensor, its root mean square: leave "
          "--topology, "
          "--granularity and --scale out");
  }
  if (!runs_on(options.device, kind)) {
    std::string others;
    for (const Word<Optimizer>& entry : optimizer_words)
      if (runs_on(options.device, entry.value))
        others += (others.empty() ? "" : ", ") + std::string(entry.word);
    throw input_error(fmt::format("--device: {} runs on the CPU so far; on {} there are {}", name(kind),
                                  name(options.device), others));
  }
  check_graph(options, kind);
  if (options.average_every > 0 && graph_needs(kind) == GraphNeeds::fixed_symmetric)
    throw input_error(fmt::format(
        "--average-every: exact means now and then make the graph change from step to step, and there {} "
        "diverges. Use dm-sgd, qg-dm-sgd or gradient-tracking",
        name(kind)));
  if (kind == Optimizer::slowmo_sgp && !could_be_even(options.graph))
    throw input_error(
        fmt::format("--graph: {}'s outer step takes the plain mean, and its push-sum weights keep another on "
                    "{}, where ranks have unequal numbers of neighbours",
                    name(kind), name(options.graph)));
  if (options.average_every > 0 && pushes(kind))
    throw input_error(
        fmt::format("--average-every takes the plain mean, and {} weighs its ranks. Use dm-sgd", name(kind)));
  if (options.average_every > 0 && compresses_gossip(kind))
    throw input_error(
        fmt::format("--average-every is for packets that are not compressed, and {}'s are", name(kind)));
  if (kind == Optimizer::streaming_diloco && options.fragment_delay > period_of(options, kind))
    throw input_error(fmt::format("--fragment-delay: {} steps are more than --period, {}",
                                  options.fragment_delay, period_of(options, kind)));
  if (kind == Optimizer::async_swarm_sgd && options.modelled.link())
    throw input_error(
        "--delay and --bandwidth are of messages, and async-swarm-sgd sends none: its ranks read a mailbox. "
        "Use "
        "--straggler alone, or swarm-sgd-non-blocking");
  if (kind == Optimizer::async_swarm_sgd && options.on_non_finite == NonFinite::skip)
    throw input_error(
        "--on-non-finite: ranks skip a step together, and async-swarm-sgd's wait for nobody. Use zero, or "
        "swarm-sgd");
}

/// An option that none of the optimizers has a use for is a mistake.
void check_concerns(const Options& options, const CLI::App& app) {
  const auto check = [&](const std::string& option, const std::function<bool(Optimizer)>& concerns) {
    if (app.count(option) == 0 || std::any_of(options.optimizers.begin(), options.optimizers.end(), concerns))
      return;
    std::string whom;
    for (const Word<Optimizer>& entry : optimizer_words)
      if (concerns(entry.value)) whom += (whom.empty() ? "" : ", ") + std::string(entry.word);
    throw input_error(fmt::format("{} is for {}; --optimizers names none of them", option, whom));
  };
  const auto only = [](std::initializer_list<Optimizer> kinds) {
    return [those = std::vector(kinds)](Optimizer kind) {
      return std::find(those.begin(), those.end(), kind) != those.end();
    };
  };
  using enum Optimizer;
  for (const char* rate : {"learning-rate", "lamb-learning-rate", "sgd-learning-rate", "sign-learning-rate"})
    check(std::string("--") + rate,
          [&](Optimizer kind) { return std::string_view(rate) == rate_of(options, kind).option; });
  check("--momentum", uses_momentum);
  check("--warmup-fraction", only({one_bit_adam, zero_one_adam, one_bit_lamb, deep_gradient_compression}));
  check("--ratio", only({deep_gradient_compression, ef21_sgd, demo}));
  for (const char* option : {"--topology", "--scale", "--granularity", "--layers"})
    check(option, only({one_bit_adam}));
  check("--update-clip", only({one_bit_adam, zero_one_adam, one_bit_lamb}));
  for (const char* option : {"--variance-updates", "--local-interval", "--most-local-steps"})
    check(option, only({zero_one_adam}));
  check("--graph", is_decentralized);
  check("--average-every", takes_exact_means);
  check("--consensus-rate", only({choco_sgd, deep_squeeze, beer}));
  check("--moniqua-bound", only({moniqua_sgd}));
  check("--period", is_local);
  for (const char* option : {"--outer-learning-rate", "--outer-momentum"}) check(option, has_outer_step);
  check("--inner-buffers", has_inner_buffers);
  check("--average-until", only({post_local_sgd}));
  for (const char* option : {"--pullback", "--anchor-momentum"}) check(option, only({overlap_local_sgd}));
  for (const char* option : {"--fragments", "--fragment-delay", "--local-share"})
    check(option, only({streaming_diloco}));
  check("--lattice-step", only({swarm_sgd_lattice}));
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, std::FILE* out, Program program) {
  Options options;
  CLI::App app(
      "Trains a classifier of pictures over data-parallel ranks with each optimizer, and compares them.",
      "train");
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->column_width(34);
  if (program == Program::quickstart_trainer)
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_options(app, options);
  if (program == Program::quickstart_trainer) leave_out_of_help(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::string text = app.help() + "\n";
    for (std::size_t at = 0; (at = text.find("\n\n\n", at)) != std::string::npos;) text.erase(at, 1);
    std::fputs(text.c_str(), out);
    return std::nullopt;
  } catch (const CLI::CallForVersion& version) {
    std::fprintf(out, "%s\n", version.what());
    return std::nullopt;
  } catch (const CLI::ExtrasError&) {
    throw input_error("unknown argument '" + app.remaining().front() + "'; see --help");
  } catch (const CLI::ArgumentMismatch& fault) {
    const std::string line = fault.what();
    const std::string option = line.substr(0, line.find(':'));
    throw input_error(option + (line.find("missing") != std::string::npos ? ": needs a value; see --help"
                                                                          : ": given more than once"));
  } catch (const CLI::ParseError& fault) {
    std::string line = fault.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    throw input_error(line + "; see --help");
  }
  if (options.checkpoint_every > 0 && options.checkpoint.empty())
    throw input_error("--checkpoint-every needs --checkpoint DIR");
  if (options.resume == "auto") {
    if (options.checkpoint.empty()) throw input_error("--resume auto needs --checkpoint DIR");
    options.resume = options.checkpoint;
    options.resume_if_any = true;
  }
  if (options.elastic && options.resume.empty()) throw input_error("--elastic needs --resume DIR or auto");
  if (options.elastic && options.label_skew)
    throw input_error(
        "--elastic shares pictures out among any number of ranks, and with --label-skew each rank has some "
        "of its own: leave one of them out");
  if (!options.plot.empty() && std::filesystem::path(options.plot).extension() != ".svg")
    throw input_error(
        fmt::format("--plot: '{}' does not end in .svg, and the picture is an SVG", options.plot));
  for (const Optimizer kind : options.optimizers) check_optimizer(options, kind);
  check_concerns(options, app);
  return options;
}

void check_files(const Options& options, bool outputs) {
  std::error_code fault;
  if (!std::filesystem::is_directory(options.data, fault)) {
    std::string line = "--data: there is no directory '" + options.data + "'";
    if (options.data == default_data_directory) line += "; install the package dataset-fashion-mnist";
    throw input_error(line);
  }
  if (!options.resume.empty() && !options.resume_if_any &&
      !std::filesystem::is_directory(options.resume, fault))
    throw input_error("--resume: there is no directory '" + options.resume + "'");
  check_output_directory("--checkpoint", options.checkpoint);
  if (!outputs) return;
  check_output("--json", options.json);
  check_output("--csv", options.csv);
  check_output("--plot", options.plot);
  if (!options.plot.empty() && !have_gnuplot())
    throw input_error("--plot: gnuplot is not installed (package gnuplot-nox)");
}

}  // namespace train

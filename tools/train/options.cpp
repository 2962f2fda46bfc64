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
#include <limits>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "any_graph.hpp"
#include "command_line.hpp"
#include "help.hpp"
#include "output.hpp"
#include "parse.hpp"
#include "picture.hpp"
#include "words.hpp"

namespace train {
namespace {

/// The names of those who have it, separated by commas.
std::string names_of(const std::function<bool(const Method&)>& has) {
  std::string names;
  for (const Method& one : methods())
    if (has(one)) names += (names.empty() ? "" : ", ") + std::string(one.name);
  return names;
}
std::string names_of_rate(Rate rate) {
  return names_of([=](const Method& one) { return one.rate == rate; });
}

/// Of an option whose value differs from method to method: who has it, and which.
std::string standards_of(std::string_view option) {
  std::string names;
  for (const Method& one : methods())
    if (const std::optional<double> value = standard_of(one, option))
      names += fmt::format("{}{} [{}]", names.empty() ? "" : ", ", one.name, *value);
  return names;
}

std::vector<const Method*> optimizers_of(const std::string& given) {
  std::vector<const Method*> optimizers;
  for (std::size_t begin = 0; begin <= given.size();) {
    const std::size_t end = std::min(given.find(',', begin), given.size());
    const std::string word = given.substr(begin, end - begin);
    const Method* const one = find_method(word);
    if (one == nullptr) {
      std::vector<std::string_view> names;
      for (const Method& known : methods()) names.push_back(known.name);
      throw input_error(fmt::format("--optimizers: '{}' is not one of {}{}", word,
                                    names_of([](const Method&) { return true; }), did_you_mean(word, names)));
    }
    if (std::find(optimizers.begin(), optimizers.end(), one) != optimizers.end())
      throw input_error(fmt::format("--optimizers: '{}' is named twice", one->name));
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
  in_group(add_file(app, "--data", o.data, "DIR", "IDX files of Fashion-MNIST or a similar set, gzip or not")
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
  in_group(add_choice(
      app, "--transport", transport_words, o.transport,
      "ranks are threads of this process, or processes under mpirun; messages of GPUs go over NCCL, or "
      "staged through the host, as with threads and mpi; auto: the one that is available"));
  in_group(add_choice(app, "--device", device_words, o.device,
                      "where models and optimizers are; ranks are dealt out to GPUs"));
  in_group(add_number<int>(
               app, "--threads-per-rank", o.threads_per_rank,
               [](int value) { return value >= 1 && value <= 1024; }, "a whole number from 1 to 1024", "1",
               "that share a step's passes over 262144 elements and more; the model computes on one")
               ->type_name("N"));
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
  in_group(add_number<double>(app, "--learning-rate", o.learning_rate, positive,
                              "a number from 1e-30 to 1e18", "0.001",
                              "highest rate of " + names_of_rate(Rate::adam))
               ->type_name("RATE"));
  in_group(add_number<double>(app, "--lamb-learning-rate", o.lamb_learning_rate, positive,
                              "a number from 1e-30 to 1e18", "0.01",
                              "highest rate of " + names_of_rate(Rate::lamb))
               ->type_name("RATE"));
  in_group(add_number<double>(app, "--sgd-learning-rate", o.sgd_learning_rate, positive,
                              "a number from 1e-30 to 1e18", "0.05", "highest rate of all others")
               ->type_name("RATE"));
  in_group(add_number<double>(app, "--sign-learning-rate", o.sign_learning_rate, positive,
                              "a number from 1e-30 to 1e18", "0.0003",
                              "highest rate, by which every element moves, of " + names_of_rate(Rate::sign))
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
                      "action of all ranks when one has NaN or infinity in its gradient"));

  group = "Compression";
  in_group(add_number<double>(app, "--warmup-fraction", o.warmup_fraction, share, "a share from 0 to 1",
                              "0.15",
                              "of steps before one-bit-adam and one-bit-lamb compress and zero-one-adam's "
                              "ranks step alone; while deep-gradient-compression's ratio falls")
               ->type_name("SHARE"));
  in_group(add_number<double>(
               app, "--ratio", o.ratio, part, "a share above 0, to 1", "",
               "share of each matrix, or of its cosine waves, that is sent: " + standards_of("ratio"))
               ->type_name("SHARE"));

  group = "Compression of one-bit-adam";
  in_group(
      add_choice(app, "--topology", topology_words, o.topology, "how the compressed momentum is averaged"));
  in_group(add_choice(app, "--scale", scale_words, o.scale, "magnitude of a decoded sign"));
  in_group(add_choice(app, "--granularity", granularity_words, o.granularity,
                      "one scale for each tensor, each 4096 elements, or all"));
  in_group(add_choice(app, "--bias-correction", bias_correction_words, o.bias_correction,
                      "of the averages until the freeze, as in adam; of one-bit-lamb, too"));
  in_group(add_number<double>(
               app, "--update-clip", o.update_clip,
               [=](double value) { return positive(value) || (value > 0 && std::isinf(value)); },
               "a number from 1e-30 to 1e18, or inf", "10",
               "bound on |momentum| / sqrt(variance) after the freeze, or inf; of one-bit-lamb and "
               "zero-one-adam, too")
               ->type_name("BOUND"));

  in_group(add_number<double>(app, "--most-masked", o.most_masked, share, "a share from 0 to 1", "0.01",
                              "largest share of elements that never train, since they had no gradient until "
                              "the freeze; of one-bit-lamb and zero-one-adam, too")
               ->type_name("SHARE"));
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
  in_group(add_choice(app, "--graph", graph_words, o.graph, "graph of mixing ranks"));
  in_group(add_number<std::int64_t>(app, "--average-every", o.average_every, count(any),
                                    "a whole number above 0", "",
                                    "every N-th step averages all ranks exactly instead [never]")
               ->type_name("N"));
  in_group(add_number<double>(app, "--consensus-rate", o.consensus_rate, part, "a number above 0, to 1", "",
                              "how far ranks follow their neighbours: " + standards_of("consensus-rate"))
               ->type_name("RATE"));
  in_group(add_number<double>(app, "--moniqua-bound", o.moniqua_bound, positive,
                              "a number from 1e-30 to 1e18", "",
                              "of moniqua-sgd: largest difference of neighbours' parameters [5 times rate]")
               ->type_name("BOUND"));

  group = "Local updates";
  in_group(add_number<std::int64_t>(app, "--period", o.period, count(any), "a whole number above 0", "",
                                    "ranks meet after every N-th step [8]")
               ->type_name("N"));
  in_group(add_number<double>(app, "--outer-learning-rate", o.outer_learning_rate, positive,
                              "a number from 1e-30 to 1e18", "",
                              "of the outer step: " + standards_of("outer-learning-rate"))
               ->type_name("RATE"));
  in_group(
      add_number<double>(app, "--outer-momentum", o.outer_momentum, below_1, "a number from 0 to below 1", "",
                         "of the outer step: " + standards_of("outer-momentum") + ", bmuf [1 - 1 / ranks]")
          ->type_name("BETA"));
  in_group(add_choice(app, "--inner-buffers", inner_buffers_words, o.inner_buffers,
                      "handling of momenta and variances when ranks synchronize at once [keep]"));
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
  in_group(add_number<double>(app, "--lattice-step", o.lattice_step, positive, "a number from 1e-30 to 1e18",
                              "",
                              "of swarm-sgd-lattice; ranks may differ by 127 of them [0.02 times "
                              "rate and period]")
               ->type_name("STEP"));

  group = "Output";
  in_group(add_file(app, "--json", o.json, "FILE", "write all figures"));
  in_group(
      add_file(app, "--csv", o.csv, "FILE",
               "write loss and bytes of every step; after which step bytes of late means leave depends on "
               "timing"));
  in_group(add_file(app, "--plot", o.plot, "FILE.svg", "draw loss against steps and bytes"));
  in_group(add_file(app, "--trace", o.trace, "FILE",
                    "write the messages and waits of all ranks, for a viewer such as Perfetto, and say which "
                    "rank was waited for; of one "
                    "optimizer, over the host"));
  in_group(add_file(app, "--checkpoint", o.checkpoint, "DIR", "save the state of all ranks"));
  in_group(add_number<std::int64_t>(app, "--checkpoint-every", o.checkpoint_every, count(any),
                                    "a whole number above 0", "",
                                    "save every N steps, too, not at the end only")
               ->type_name("N"));
  in_group(add_file(app, "--resume", o.resume, "DIR",
                    "resume from the --checkpoint folder; auto: if it has a checkpoint"));
  in_group(app.add_flag("--elastic", o.elastic,
                        "--resume also from another number of ranks: each step keeps its number of images, "
                        "which are divided again"));
  in_group(app.add_flag("--quiet", o.quiet, "no progress, only the table"));

  add_help(app);
  app.footer(help_footer());
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

const char* name(Transport value) { return word_of(transport_words, value); }
const char* name(Device value) { return word_of(device_words, value); }
const char* name(Topology value) { return word_of(topology_words, value); }
const char* name(Graph value) { return word_of(graph_words, value); }
const char* name(RateSchedule value) { return word_of(rate_schedule_words, value); }
const char* name(Scale value) { return word_of(scale_words, value); }
const char* name(Granularity value) { return word_of(granularity_words, value); }
const char* name(BiasCorrection value) { return word_of(bias_correction_words, value); }
const char* name(NonFinite value) { return word_of(non_finite_words, value); }
const char* name(LayerKind value) { return word_of(layer_kind_words, value); }
const char* name(InnerBuffers value) { return word_of(inner_buffers_words, value); }
const char* name(Inputs value) { return word_of(inputs_words, value); }

HighestRate rate_of(const Options& options, const Method& method) {
  const auto plain = [](const char* option, double rate) { return HighestRate{option, rate, rate}; };
  HighestRate highest = method.rate == Rate::adam   ? plain("learning-rate", options.learning_rate)
                        : method.rate == Rate::lamb ? plain("lamb-learning-rate", options.lamb_learning_rate)
                        : method.rate == Rate::sign ? plain("sign-learning-rate", options.sign_learning_rate)
                                                    : plain("sgd-learning-rate", options.sgd_learning_rate);
  if (method.whole_rate) highest.rate /= 1 - options.momentum;
  return highest;
}

std::chrono::milliseconds deadline_of(const Options& options) {
  // Beyond a year nobody waits, and clocks overflow.
  return std::chrono::milliseconds(
      std::max(1LL, static_cast<long long>(1000 * std::min(options.deadline, 3e7))));
}

bool ranks_are_processes(const Options& options, int world) {
  if (options.transport == Transport::threads && world > 1)
    throw input_error(
        fmt::format("mpirun started {} processes; they need --transport mpi to be one job", world));
  const bool processes = options.transport == Transport::mpi || world > 1;
  if (processes && options.ranks_given && options.ranks != world)
    throw input_error(fmt::format("--ranks: {} asked for, but mpirun started {}", options.ranks, world));
  return processes;
}

double ratio_of(const Options& options, const Method& method) {
  return options.ratio.value_or(standard_of(method, "ratio").value_or(1));
}

double consensus_rate_of(const Options& options, const Method& method) {
  const std::optional<double> standard = standard_of(method, "consensus-rate");
  return standard ? options.consensus_rate.value_or(*standard) : 1;
}

std::int64_t period_of(const Options& options) { return options.period.value_or(8); }

double outer_learning_rate_of(const Options& options, const Method& method) {
  return options.outer_learning_rate.value_or(standard_of(method, "outer-learning-rate").value_or(1));
}

double outer_momentum_of(const Options& options, const Method& method) {
  return options.outer_momentum.value_or(
      standard_of(method, "outer-momentum").value_or(1 - 1.0 / options.ranks));
}

InnerBuffers inner_buffers_of(const Options& options) {
  return options.inner_buffers.value_or(InnerBuffers::keep);
}

double average_until_of(const Options& options, const Method& method) {
  return uses(method, "average-until") ? options.average_until.value_or(0.5) : 0;
}

double pullback_of(const Options& options) { return options.pullback.value_or(0.6); }

double anchor_momentum_of(const Options& options) { return options.anchor_momentum.value_or(0.7); }

// Ranks drift apart by as much as they move between meetings, which both decide about.
double lattice_step_of(const Options& options) {
  return options.lattice_step.value_or(0.02 * options.sgd_learning_rate *
                                       static_cast<double>(period_of(options)));
}

// As lattice_step_of; neighbours mix in every step.
double moniqua_bound_of(const Options& options) {
  return options.moniqua_bound.value_or(5 * options.sgd_learning_rate);
}

const char* route_of(const Options& options, const Method& method) {
  if (is_decentralized(method)) return name(options.graph);
  return uses(method, "topology") ? name(options.topology) : method.route;
}

bool runs_on(Device device, const Method& method) { return device == Device::cpu || method.made.gpu; }

namespace {

/// Says what the library says at compile time of an optimizer on a graph, and what to use instead.
void check_graph(const Options& options, const Method& kind) {
  if (satisfies(options.graph, kind.graph)) return;
  if (kind.graph == GraphNeeds::even)
    throw input_error(
        fmt::format("--graph: {}'s outer step takes the plain mean, and its push-sum weights keep another on "
                    "{}, where ranks have unequal numbers of neighbours",
                    kind.name, name(options.graph)));
  std::string others;
  for (const Word<Graph>& entry : graph_words)
    if (satisfies(entry.value, kind.graph)) others += (others.empty() ? "" : ", ") + std::string(entry.word);
  const char* const reason =
      kind.graph == GraphNeeds::fixed
          ? "{0} keeps sums over its neighbours from step to step, and {1} is not fixed. Use one of {2}, or "
            "deep-squeeze on this graph"
          : "{0} diverges at any learning rate on graphs that are not fixed and symmetric, such as "
            "{1}. Use one of {2}, or qg-dm-sgd on this graph";
  throw input_error("--graph: " + fmt::format(fmt::runtime(reason), kind.name, name(options.graph), others));
}

void check_average_every(const Method& kind) {
  if (!is_decentralized(kind) || uses(kind, "average-every")) return;
  if (kind.graph == GraphNeeds::fixed_symmetric)
    throw input_error(fmt::format(
        "--average-every: exact means now and then make the graph change from step to step, and there {} "
        "diverges. Use dm-sgd, qg-dm-sgd or gradient-tracking",
        kind.name));
  if (kind.family == Family::compressed_gossip)
    throw input_error(
        fmt::format("--average-every is for packets that are not compressed, and {}'s are", kind.name));
  throw input_error(
      fmt::format("--average-every takes the plain mean, and {} weighs its ranks. Use dm-sgd", kind.name));
}

void check_optimizer(const Options& options, const Method& kind) {
  if (uses(kind, "layers") && !options.layers.empty()) {
    if (options.device != Device::cpu)
      throw input_error(fmt::format(
          "--layers: {} with a compressor for each kind of layer runs on the CPU so far", kind.name));
    if (options.topology != Topology::scatter_gather || options.granularity != Granularity::segment ||
        options.scale != Scale::rms)
      throw input_error(
          "--layers goes over scatter-gather, with one scale for each tensor, its root mean square: don't "
          "set --topology, --granularity and --scale");
  }
  if (!runs_on(options.device, kind))
    throw input_error(fmt::format(
        "--device: {} runs on the CPU so far; on {} there are {}", kind.name, name(options.device),
        names_of([&](const Method& other) { return runs_on(options.device, other); })));
  if (options.threads_per_rank > 1) {
    if (options.device != Device::cpu)
      throw input_error("--threads-per-rank is of ranks on the CPU, and --device isn't");
    if (!kind.made.gpu)
      throw input_error(fmt::format("--threads-per-rank: {} steps on one thread so far; on several do {}",
                                    kind.name, names_of([](const Method& other) { return other.made.gpu; })));
    if (uses(kind, "layers") && !options.layers.empty())
      throw input_error(fmt::format(
          "--threads-per-rank: {} with a compressor for each kind of layer steps on one thread so far",
          kind.name));
  }
  if (is_decentralized(kind)) check_graph(options, kind);
  if (options.average_every > 0) check_average_every(kind);
  if (uses(kind, "fragment-delay") && options.fragment_delay > period_of(options))
    throw input_error(fmt::format("--fragment-delay: {} steps are more than --period, {}",
                                  options.fragment_delay, period_of(options)));
  if (options.inner_buffers == InnerBuffers::average && uses(kind, "inner-buffers") &&
      std::string_view(kind.route) == "random-matching")
    throw input_error(fmt::format(
        "--inner-buffers: pairs of ranks have no mean of all, and {}'s meet in pairs. Use keep or reset",
        kind.name));
  if (!sends_messages(kind) && options.modelled.link())
    throw input_error(
        fmt::format("--delay and --bandwidth are of messages, and {} sends none: its ranks read a mailbox. "
                    "Use "
                    "--straggler alone, or swarm-sgd-non-blocking",
                    kind.name));
  if (!sends_messages(kind) && options.on_non_finite == NonFinite::skip)
    throw input_error(
        fmt::format("--on-non-finite: ranks skip a step together, and those of {} don't wait for each other. "
                    "Use zero, or swarm-sgd",
                    kind.name));
}

/// An option that none of the optimizers has a use for is a mistake.
void check_concerns(const Options& options, const CLI::App& app) {
  const auto check = [&](const std::string& option, const std::function<bool(const Method&)>& concerns) {
    if (app.count("--" + option) == 0 || std::any_of(options.optimizers.begin(), options.optimizers.end(),
                                                     [&](const Method* kind) { return concerns(*kind); }))
      return;
    throw input_error(
        fmt::format("--{} is for {}; --optimizers names none of them", option, names_of(concerns)));
  };
  for (const char* rate : {"learning-rate", "lamb-learning-rate", "sgd-learning-rate", "sign-learning-rate"})
    check(rate, [&](const Method& kind) { return std::string_view(rate) == rate_of(options, kind).option; });
  std::set<std::string_view> used;
  for (const Method& kind : methods())
    for (const Use& use : kind.uses)
      if (use.option != nullptr && used.insert(use.option).second)
        check(use.option, [&](const Method& other) { return uses(other, use.option); });
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
  if (!parse(app, argc, argv, out)) return std::nullopt;
  if (!options.trace.empty() && options.optimizers.size() != 1)
    throw input_error("--trace: one file has the waits of one optimizer; --optimizers names several");
  if (!options.trace.empty() && options.transport == Transport::nccl)
    throw input_error("--trace: NCCL's waits are the device's. Take another --transport, or a profiler");
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
  check_picture("--plot", options.plot);
  if ((options.transport == Transport::nccl || options.transport == Transport::staged) &&
      options.device == Device::cpu)
    throw input_error(
        fmt::format("--transport: {} is for messages of GPUs, and --device is cpu", name(options.transport)));
  if (options.transport == Transport::nccl && options.modelled.link())
    throw input_error(
        "--delay and --bandwidth are of messages that go by way of the host, and nccl's don't: use "
        "--transport staged");
  for (const Method* const kind : options.optimizers) check_optimizer(options, *kind);
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
  check_output("--trace", options.trace);
  check_output("--json", options.json);
  check_output("--csv", options.csv);
  check_drawing("--plot", options.plot);
}

}  // namespace train

// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "any_graph.hpp"
#include "report.hpp"
#include "terse/core/version.hpp"

namespace train {
namespace {

template <class Value>
struct Word {
  const char* word;
  Value value;
};

// The words of each choice, once, for parsing, for --help and for reports.
constexpr std::array optimizer_words{
    Word<Optimizer>{"adam", Optimizer::adam},
    Word<Optimizer>{"one-bit-adam", Optimizer::one_bit_adam},
    Word<Optimizer>{"momentum-sgd", Optimizer::momentum_sgd},
    Word<Optimizer>{"error-feedback-sgd", Optimizer::error_feedback_sgd},
    Word<Optimizer>{"dist-error-feedback-sgd", Optimizer::dist_error_feedback_sgd},
    Word<Optimizer>{"sign-sgd", Optimizer::sign_sgd},
    Word<Optimizer>{"deep-gradient-compression", Optimizer::deep_gradient_compression},
    Word<Optimizer>{"power-sgd", Optimizer::power_sgd},
    Word<Optimizer>{"quantized-sgd", Optimizer::quantized_sgd},
    Word<Optimizer>{"ef21-sgd", Optimizer::ef21_sgd},
    Word<Optimizer>{"d-sgd", Optimizer::d_sgd},
    Word<Optimizer>{"awc-d-sgd", Optimizer::awc_d_sgd},
    Word<Optimizer>{"cta-d-sgd", Optimizer::cta_d_sgd},
    Word<Optimizer>{"dm-sgd", Optimizer::dm_sgd},
    Word<Optimizer>{"da-dm-sgd", Optimizer::da_dm_sgd},
    Word<Optimizer>{"awc-dm-sgd", Optimizer::awc_dm_sgd},
    Word<Optimizer>{"qg-dm-sgd", Optimizer::qg_dm_sgd},
    Word<Optimizer>{"decentlam", Optimizer::decentlam},
    Word<Optimizer>{"momentum-consensus", Optimizer::momentum_consensus},
    Word<Optimizer>{"d2", Optimizer::d2},
    Word<Optimizer>{"d2-dm-sgd", Optimizer::d2_dm_sgd},
    Word<Optimizer>{"gradient-tracking", Optimizer::gradient_tracking},
    Word<Optimizer>{"momentum-tracking", Optimizer::momentum_tracking},
    Word<Optimizer>{"stochastic-gradient-push", Optimizer::stochastic_gradient_push},
    Word<Optimizer>{"choco-sgd", Optimizer::choco_sgd},
    Word<Optimizer>{"deep-squeeze", Optimizer::deep_squeeze},
    Word<Optimizer>{"dcd-sgd", Optimizer::dcd_sgd},
    Word<Optimizer>{"beer", Optimizer::beer}};
// What papers call some of them; understood, too.
constexpr std::array optimizer_synonyms{Word<Optimizer>{"pmsgd", Optimizer::momentum_sgd},
                                        Word<Optimizer>{"dsgd", Optimizer::d_sgd},
                                        Word<Optimizer>{"dmsgd", Optimizer::dm_sgd},
                                        Word<Optimizer>{"da-dmsgd", Optimizer::da_dm_sgd},
                                        Word<Optimizer>{"awc-dmsgd", Optimizer::awc_dm_sgd},
                                        Word<Optimizer>{"qg-dmsgd", Optimizer::qg_dm_sgd},
                                        Word<Optimizer>{"d2-dmsgd", Optimizer::d2_dm_sgd},
                                        Word<Optimizer>{"sgp", Optimizer::stochastic_gradient_push},
                                        Word<Optimizer>{"choco", Optimizer::choco_sgd},
                                        Word<Optimizer>{"deepsqueeze", Optimizer::deep_squeeze}};
constexpr std::array graph_words{Word<Graph>{"ring", Graph::ring},
                                 Word<Graph>{"mesh", Graph::mesh},
                                 Word<Graph>{"torus", Graph::torus},
                                 Word<Graph>{"star", Graph::star},
                                 Word<Graph>{"complete", Graph::complete},
                                 Word<Graph>{"hypercube", Graph::hypercube},
                                 Word<Graph>{"exponential", Graph::exponential},
                                 Word<Graph>{"symmetric-exponential", Graph::symmetric_exponential},
                                 Word<Graph>{"one-peer-exponential", Graph::one_peer_exponential},
                                 Word<Graph>{"one-peer-hypercube", Graph::one_peer_hypercube},
                                 Word<Graph>{"random-matching", Graph::random_matching}};
constexpr std::array rate_schedule_words{Word<RateSchedule>{"cosine", RateSchedule::cosine},
                                         Word<RateSchedule>{"constant", RateSchedule::constant}};
constexpr std::array transport_words{Word<Transport>{"threads", Transport::threads},
                                     Word<Transport>{"mpi", Transport::mpi}};
constexpr std::array device_words{Word<Device>{"cpu", Device::cpu}, Word<Device>{"cuda", Device::cuda}};
constexpr std::array topology_words{Word<Topology>{"scatter-gather", Topology::scatter_gather},
                                    Word<Topology>{"ring", Topology::ring},
                                    Word<Topology>{"all-gather", Topology::all_gather}};
constexpr std::array scale_words{Word<Scale>{"rms", Scale::rms}, Word<Scale>{"mean-abs", Scale::mean_abs}};
constexpr std::array granularity_words{Word<Granularity>{"segment", Granularity::segment},
                                       Word<Granularity>{"block", Granularity::block},
                                       Word<Granularity>{"whole", Granularity::whole}};
constexpr std::array non_finite_words{Word<NonFinite>{"throw", NonFinite::raise},
                                      Word<NonFinite>{"skip", NonFinite::skip},
                                      Word<NonFinite>{"zero", NonFinite::zero}};
constexpr std::array inputs_words{Word<Inputs>{"normalized", Inputs::normalized},
                                  Word<Inputs>{"unit", Inputs::unit}};
constexpr std::array model_words{Word<const char*>{"mlp", "mlp"}, Word<const char*>{"cnn", "cnn"}};

template <class Value, std::size_t Count>
const char* word_of(const std::array<Word<Value>, Count>& words, Value value) {
  for (const Word<Value>& entry : words)
    if (entry.value == value) return entry.word;
  return "?";
}

template <class Value, std::size_t Count>
std::string all_words(const std::array<Word<Value>, Count>& words, std::string_view separator) {
  std::string text;
  for (const Word<Value>& entry : words) {
    if (!text.empty()) text += separator;
    text += entry.word;
  }
  return text;
}

template <class Value, std::size_t Count>
Value value_of(const std::array<Word<Value>, Count>& words, const std::string& option,
               std::string_view given) {
  for (const Word<Value>& entry : words)
    if (given == entry.word) return entry.value;
  throw input_error(fmt::format("{}: '{}' is not one of {}", option, given, all_words(words, ", ")));
}

template <class Value, std::size_t Count, class Target>
CLI::Option* add_choice(CLI::App& app, const std::string& option, const std::array<Word<Value>, Count>& words,
                        Target& target, const std::string& text) {
  CLI::Option* const added = app.add_option_function<std::string>(
      option,
      [&words, &target, option](const std::string& given) { target = value_of(words, option, given); }, text);
  for (const Word<Value>& entry : words)
    if (target == entry.value) added->default_str(entry.word);
  return added->type_name(all_words(words, "|"));
}

// CLI11's own ranges let "nan" pass and convert "1.5" for an integer into an unclear message.
template <class Number>
std::optional<Number> number_of(const std::string& given) {
  Number value{};
  const char* const end = given.data() + given.size();
  const std::from_chars_result result = std::from_chars(given.data(), end, value);
  if (result.ec != std::errc{} || result.ptr != end) return std::nullopt;
  return value;
}

template <class Target>
CLI::Option* add_number(CLI::App& app, const std::string& option, Target& target,
                        const std::function<bool(Target)>& allowed, const std::string& wanted,
                        const std::string& default_text, const std::string& text) {
  CLI::Option* const added = app.add_option_function<std::string>(
      option,
      [&target, allowed, wanted, option](const std::string& given) {
        const std::optional<Target> value = number_of<Target>(given);
        if (!value || !allowed(*value))
          throw input_error(fmt::format("{}: '{}' is not {}", option, given, wanted));
        target = *value;
      },
      text);
  if (!default_text.empty()) added->default_str(default_text);
  return added;
}

CLI::Option* add_file(CLI::App& app, const std::string& option, std::string& target, const char* type,
                      const std::string& text) {
  return app
      .add_option_function<std::string>(
          option,
          [&target, option](const std::string& given) {
            if (given.empty()) throw input_error(option + ": needs a path, but got an empty one");
            target = given;
          },
          text)
      ->type_name(type);
}

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

// CLI11 writes defaults as NAME=default, which reads as if that were to be typed.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_size() > 0 ? option->get_type_name() : "";
    return type.empty() ? "" : " " + type;
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string& standard = option->get_default_str();
    return option->get_description() + (standard.empty() ? "" : " [" + standard + "]");
  }
};

void add_options(CLI::App& app, Options& o) {
  const auto positive = [](double value) { return value > 0 && value <= std::numeric_limits<double>::max(); };
  const auto not_negative = [](double value) {
    return value >= 0 && value <= std::numeric_limits<double>::max();
  };
  const auto share = [](double value) { return value >= 0 && value <= 1; };
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
  in_group(add_number<double>(app, "--deadline", o.deadline, positive, "a number of seconds above 0", "60",
                              "give up on a rank that is silent for so long")
               ->type_name("SECONDS"));

  group = "Training";
  in_group(add_number<int>(app, "--epochs", o.epochs, count(100'000), "a whole number from 1 to 100000", "10",
                           "passes over the training set")
               ->type_name("N"));
  in_group(add_number<std::int64_t>(app, "--batch", o.batch, count(100'000),
                                    "a whole number from 1 to 100000", "64", "pictures per rank and step")
               ->type_name("N"));
  in_group(add_number<double>(app, "--learning-rate", o.learning_rate, positive, "a number above 0", "0.001",
                              "highest rate of adam and one-bit-adam")
               ->type_name("RATE"));
  in_group(add_number<double>(app, "--sgd-learning-rate", o.sgd_learning_rate, positive, "a number above 0",
                              "0.05", "highest rate of all others")
               ->type_name("RATE"));
  in_group(add_number<double>(app, "--sign-learning-rate", o.sign_learning_rate, positive, "a number above 0",
                              "0.0003", "highest rate of sign-sgd, which moves every element by it")
               ->type_name("RATE"));
  in_group(add_number<double>(
               app, "--momentum", o.momentum, [](double value) { return value >= 0 && value < 1; },
               "a number from 0 to below 1", "0.9", "of all but adam and one-bit-adam")
               ->type_name("BETA"));
  in_group(add_number<double>(app, "--learning-rate-warmup", o.learning_rate_warmup, share,
                              "a share from 0 to 1", "0.05", "share of the steps in which the rate rises")
               ->type_name("SHARE"));
  in_group(add_choice(app, "--rate-schedule", rate_schedule_words, o.rate_schedule,
                      "from there it falls to 0 like a cosine, or stays"));
  in_group(add_number<double>(app, "--weight-decay", o.weight_decay, not_negative, "a number of at least 0",
                              "0", "decoupled weight decay")
               ->type_name("RATE"));
  const auto clip_norm = [&o](const std::string& given) {
    const std::optional<double> value = number_of<double>(given);
    if (!value || !(*value > 0) || *value > std::numeric_limits<double>::max())
      throw input_error(fmt::format("--clip-norm: '{}' is not a number above 0", given));
    o.clip_norm = value;
  };
  in_group(app.add_option_function<std::string>("--clip-norm", clip_norm,
                                                "bound on the gradient's norm over all ranks [none]")
               ->type_name("NORM"));
  in_group(add_choice(app, "--on-non-finite", non_finite_words, o.on_non_finite,
                      "what all ranks do when one has NaN or infinity in its gradient"));

  group = "Compression";
  in_group(add_number<double>(
               app, "--warmup-fraction", o.warmup_fraction, share, "a share from 0 to 1", "0.15",
               "of steps before one-bit-adam compresses; while deep-gradient-compression's ratio falls")
               ->type_name("SHARE"));
  const auto ratio = [&o](const std::string& given) {
    const std::optional<double> value = number_of<double>(given);
    if (!value || !(*value > 0 && *value <= 1))
      throw input_error(fmt::format("--ratio: '{}' is not a share above 0, to 1", given));
    o.ratio = value;
  };
  in_group(app.add_option_function<std::string>("--ratio", ratio,
                                                "share of each matrix that deep-gradient-compression [0.005] "
                                                "and ef21-sgd [0.05] send")
               ->type_name("SHARE"));

  group = "Compression of one-bit-adam";
  in_group(
      add_choice(app, "--topology", topology_words, o.topology, "how the compressed momentum is averaged"));
  in_group(add_choice(app, "--scale", scale_words, o.scale, "magnitude that a sign stands for"));
  in_group(add_choice(app, "--granularity", granularity_words, o.granularity,
                      "one scale for each tensor, each 4096 elements, or all"));
  in_group(add_number<double>(
               app, "--update-clip", o.update_clip, [](double value) { return value > 0; },
               "a number above 0, or inf", "10",
               "bound on |momentum| / sqrt(variance) after the freeze, or inf")
               ->type_name("BOUND"));

  group = "Decentralized optimizers";
  in_group(add_choice(app, "--graph", graph_words, o.graph, "who mixes with whom"));
  in_group(add_number<std::int64_t>(app, "--average-every", o.average_every,
                                    count(std::numeric_limits<std::int64_t>::max()), "a whole number above 0",
                                    "", "every N-th step averages all ranks exactly instead [never]")
               ->type_name("N"));
  const auto consensus_rate = [&o](const std::string& given) {
    const std::optional<double> value = number_of<double>(given);
    if (!value || !(*value > 0 && *value <= 1))
      throw input_error(fmt::format("--consensus-rate: '{}' is not a number above 0, to 1", given));
    o.consensus_rate = value;
  };
  in_group(app.add_option_function<std::string>(
                  "--consensus-rate", consensus_rate,
                  "how far choco-sgd [0.4], deep-squeeze [0.4] and beer [0.4] follow their neighbours")
               ->type_name("RATE"));

  group = "Output";
  in_group(add_file(app, "--json", o.json, "FILE", "write all figures"));
  in_group(add_file(app, "--csv", o.csv, "FILE", "write loss and bytes of every step"));
  in_group(add_file(app, "--plot", o.plot, "FILE.svg", "draw loss against steps and bytes (with gnuplot)"));
  in_group(add_file(app, "--checkpoint", o.checkpoint, "DIR", "save the state of all ranks"));
  in_group(add_number<std::int64_t>(app, "--checkpoint-every", o.checkpoint_every,
                                    count(std::numeric_limits<std::int64_t>::max()), "a whole number above 0",
                                    "", "save every N steps, too, not at the end only")
               ->type_name("N"));
  in_group(add_file(app, "--resume", o.resume, "DIR", "go on from what --checkpoint saved"));
  in_group(app.add_flag("--quiet", o.quiet, "no progress, only the table"));

  group = "Help";
  in_group(app.set_help_flag("-h,--help", "print this and exit"));
  in_group(app.set_version_flag(
      "--version",
      fmt::format("terse {}.{}.{}", TERSE_VERSION_MAJOR, TERSE_VERSION_MINOR, TERSE_VERSION_PATCH),
      "print the version and exit"));

  app.footer(
      "Optimizers, and what their compressed steps go over:\n"
      "  adam                       dense; the reference of one-bit-adam and sign-sgd\n"
      "  one-bit-adam               signs of Adam's momentum, error feedback; --topology\n"
      "  momentum-sgd               dense; the reference of all below but sign-sgd\n"
      "  error-feedback-sgd         signs, error feedback, no momentum but 10 times the rate; "
      "scatter-gather\n"
      "  dist-error-feedback-sgd    signs of Nesterov momenta, error feedback; scatter-gather\n"
      "  sign-sgd                   majority vote of momenta, no error feedback; scatter-gather\n"
      "  deep-gradient-compression  largest elements of momenta, error feedback; all-gather\n"
      "  power-sgd                  matrices of rank 2, error feedback; scatter-gather\n"
      "  quantized-sgd              4 bits, unbiased, no error feedback; scatter-gather\n"
      "  ef21-sgd                   largest elements of what momenta have changed by; all-gather\n\n"
      "Decentralized ones, in which ranks mix parameters of their own with their neighbours' in --graph:\n"
      "  d-sgd                      step, then mix (ATC); no momentum, at the same rate\n"
      "  awc-d-sgd, cta-d-sgd       mix, and step by the gradient there was, or by that at the mixture\n"
      "  dm-sgd                     d-sgd with momentum on each rank\n"
      "  da-dm-sgd                  the same, and momenta are mixed, too\n"
      "  awc-dm-sgd                 awc-d-sgd with momentum on each rank\n"
      "  qg-dm-sgd                  momentum of how the model moves, mixing included\n"
      "  decentlam                  momentum without its bias; graphs that are fixed and symmetric\n"
      "  momentum-consensus         momentum of how the model moves, half of it mixed; the same graphs\n"
      "  d2, d2-dm-sgd              exact diffusion on (I + W) / 2, without and with momentum\n"
      "  gradient-tracking          mixes estimates of the mean gradient, too; no momentum\n"
      "  momentum-tracking          the same of momentum\n"
      "  stochastic-gradient-push   dm-sgd by push-sum weights\n"
      "  choco-sgd                  dm-sgd by compressed differences, 4 bits; fixed graphs\n"
      "  deep-squeeze               dm-sgd by compressed parameters with error feedback, 8 bits\n"
      "  dcd-sgd                    compressed differences, 8 bits, unbiased, no momentum; fixed graphs\n"
      "  beer                       gradient-tracking by compressed differences, 4 bits; fixed graphs\n"
      "  Known as well: pmsgd (momentum-sgd), dsgd, dmsgd, da-dmsgd, awc-dmsgd, qg-dmsgd, d2-dmsgd, sgp, "
      "choco,\n"
      "  deepsqueeze.\n\n"
      "Examples:\n"
      "  train --plot loss.svg                         adam and one-bit-adam on 4 threads\n"
      "  train --optimizers one-bit-adam --model cnn --topology ring --granularity block\n"
      "  train --optimizers momentum-sgd,power-sgd,deep-gradient-compression --ratio 0.001\n"
      "  train --optimizers pmsgd,dmsgd,decentlam --ranks 8 --batch 256 --label-skew 0.1\n"
      "  mpirun -n 4 train --transport mpi --json runs.json\n"
      "  train --device cuda --ranks 2 --batch 512     models on the GPU, where there is one\n"
      "  train --checkpoint state --checkpoint-every 500; train --checkpoint state --resume state\n\n"
      "Exit codes: 0 done, 1 training failed, 2 an option or a file can't be used.");
}

// Like access(2), which also knows of read-only file systems and of what root may do.
bool may_write(const std::filesystem::path& directory) { return access(directory.c_str(), W_OK | X_OK) == 0; }

void check_output_file(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  std::error_code fault;
  if (std::filesystem::is_directory(path, fault))
    throw input_error(fmt::format("{}: '{}' is a directory, not a file", option, path));
  std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (parent.empty()) parent = ".";
  if (!std::filesystem::is_directory(parent, fault))
    throw input_error(fmt::format("{}: there is no directory '{}'", option, parent.string()));
  if (!may_write(parent))
    throw input_error(fmt::format("{}: the directory '{}' is not writable", option, parent.string()));
}

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
const char* name(Inputs value) { return word_of(inputs_words, value); }

HighestRate rate_of(const Options& options, Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::adam:
    case Optimizer::one_bit_adam:
      return {"learning-rate", options.learning_rate, options.learning_rate};
    case Optimizer::sign_sgd:
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
      return Topology::all_gather;
    default:
      return Topology::scatter_gather;
  }
}

bool is_decentralized(Optimizer optimizer) { return optimizer >= Optimizer::d_sgd; }

const char* route_of(const Options& options, Optimizer optimizer) {
  return is_decentralized(optimizer) ? name(options.graph) : name(topology_of(options, optimizer));
}

GraphNeeds graph_needs(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::decentlam:
    case Optimizer::momentum_consensus:
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
  if (is_decentralized(optimizer)) return false;
  switch (optimizer) {
    case Optimizer::deep_gradient_compression:
    case Optimizer::power_sgd:
    case Optimizer::ef21_sgd:
      return false;
    default:
      return true;
  }
}

namespace {

bool diverges_with_means(Optimizer kind) {
  return graph_needs(kind) == GraphNeeds::fixed_symmetric || kind == Optimizer::d2 ||
         kind == Optimizer::d2_dm_sgd;
}

bool compresses_gossip(Optimizer kind) { return kind >= Optimizer::choco_sgd; }

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
          : "{0}, momentum on the mixture, diverges whatever the learning rate on graphs that are not fixed "
            "and "
            "symmetric, such as {1}. Use one of {2}, or qg-dm-sgd on this graph";
  throw input_error("--graph: " + fmt::format(fmt::runtime(reason), name(kind), name(options.graph), others));
}

void check_optimizer(const Options& options, Optimizer kind) {
  if (!runs_on(options.device, kind)) {
    std::string others;
    for (const Word<Optimizer>& entry : optimizer_words)
      if (runs_on(options.device, entry.value))
        others += (others.empty() ? "" : ", ") + std::string(entry.word);
    throw input_error(fmt::format("--device: {} runs on the CPU so far; on {} there are {}", name(kind),
                                  name(options.device), others));
  }
  check_graph(options, kind);
  if (options.average_every > 0 && diverges_with_means(kind))
    throw input_error(fmt::format(
        "--average-every: exact means now and then make the graph change from step to step, and there {} "
        "diverges. Use dm-sgd, qg-dm-sgd or gradient-tracking",
        name(kind)));
  if (options.average_every > 0 && kind == Optimizer::stochastic_gradient_push)
    throw input_error(
        fmt::format("--average-every takes the plain mean, and {} weighs its ranks. Use dm-sgd", name(kind)));
  if (options.average_every > 0 && compresses_gossip(kind))
    throw input_error(
        fmt::format("--average-every is for packets that are not compressed, and {}'s are", name(kind)));
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, std::FILE* out) {
  Options options;
  CLI::App app(
      "Trains a classifier of pictures over data-parallel ranks with each optimizer, and compares them.",
      "train");
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->column_width(34);
  add_options(app, options);
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
  for (const Optimizer kind : options.optimizers) check_optimizer(options, kind);
  return options;
}

void check_files(const Options& options, bool outputs) {
  std::error_code fault;
  if (!std::filesystem::is_directory(options.data, fault)) {
    std::string line = "--data: there is no directory '" + options.data + "'";
    if (options.data == default_data_directory) line += "; install the package dataset-fashion-mnist";
    throw input_error(line);
  }
  if (!options.resume.empty() && !std::filesystem::is_directory(options.resume, fault))
    throw input_error("--resume: there is no directory '" + options.resume + "'");
  check_output_directory("--checkpoint", options.checkpoint);
  if (!outputs) return;
  check_output_file("--json", options.json);
  check_output_file("--csv", options.csv);
  check_output_file("--plot", options.plot);
  if (!options.plot.empty() && !have_gnuplot())
    throw input_error("--plot: gnuplot is not installed (package gnuplot-nox)");
}

}  // namespace train

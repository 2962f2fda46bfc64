// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <system_error>
#include <utility>

#include "../../tools/train/command_line.hpp"
#include "../../tools/train/output.hpp"
#include "../../tools/train/parse.hpp"
#include "../../tools/train/picture.hpp"
#include "help.hpp"

namespace pipeline {
namespace {

using train::input_error;
template <class Value>
using Word = train::Word<Value>;

constexpr std::array task_words{Word<Task>{"pictures", Task::pictures}, Word<Task>{"text", Task::text},
                                Word<Task>{"glosses", Task::glosses}};
constexpr std::array transport_words{Word<Transport>{"threads", Transport::threads},
                                     Word<Transport>{"mpi", Transport::mpi}};
constexpr std::array averaging_words{Word<Averaging>{"dense", Averaging::dense},
                                     Word<Averaging>{"1-bit", Averaging::one_bit}};
constexpr std::array method_words{
    Word<Method>{"exact", Method::exact}, Word<Method>{"changes", Method::changes},
    Word<Method>{"direct", Method::direct}, Word<Method>{"rotated", Method::rotated}};
constexpr std::array granularity_words{Word<Granularity>{"64", Granularity::block},
                                       Word<Granularity>{"128", Granularity::wide_block},
                                       Word<Granularity>{"row", Granularity::row}};
constexpr std::array memory_words{Word<Memory>{"fp32", Memory::fp32}, Word<Memory>{"fp16", Memory::fp16},
                                  Word<Memory>{"bf16", Memory::bf16}, Word<Memory>{"int8", Memory::int8}};
constexpr std::array first_words{Word<First>{"fp32", First::fp32}, Word<First>{"fp16", First::fp16},
                                 Word<First>{"8", First::int8}};
constexpr std::array schedule_words{Word<bool>{"gpipe", true}, Word<bool>{"1f1b", false}};

/// As they were written; what they mean depends on others of them.
struct Written {
  std::string methods = "exact,changes:4,changes:3,changes:2,direct:2", seeds = "1", bandwidth;
  int forward_bits = 4, backward_bits = 32;
  Granularity granularity = Granularity::block;
  Memory memory = Memory::fp16;
  First first = First::fp32;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

template <class Number>
Number number_in(const std::string& option, const std::string& given, Number least, Number most) {
  const std::optional<Number> value = train::number_of<Number>(given);
  if (!value || !(*value >= least && *value <= most))
    throw input_error(fmt::format("{}: '{}' is not a number from {} to {}", option, given, least, most));
  return *value;
}

Coding coding_of(const std::string& given, const Written& written) {
  const std::vector<std::string> parts = split(given, ':');
  if (parts.empty() || parts.size() > 2)
    throw input_error(fmt::format("--method: '{}' is not METHOD[:FORWARD[/BACKWARD]]", given));
  Coding coding;
  coding.method = train::value_of(method_words, "--method", parts[0]);
  if (coding.method == Method::exact) {
    if (parts.size() > 1) throw input_error("--method: exact has no bits to choose");
    return coding;
  }
  coding.forward_bits = written.forward_bits;
  coding.backward_bits = written.backward_bits;
  coding.granularity = written.granularity;
  coding.memory = written.memory;
  coding.first = written.first;
  if (parts.size() > 1) {
    const std::vector<std::string> bits = split(parts[1], '/');
    if (bits.empty() || bits.size() > 2)
      throw input_error(fmt::format("--method: '{}' is not METHOD[:FORWARD[/BACKWARD]]", given));
    coding.forward_bits = number_in("--method", bits[0], 1, 32);
    if (bits.size() > 1) coding.backward_bits = number_in("--method", bits[1], 1, 32);
  }
  if (const std::string reason = why_not(coding); !reason.empty())
    throw input_error(fmt::format("--method {}: {}", given, reason));
  return coding;
}

SlowLink link_of(const std::string& bandwidth, SlowLink link) {
  if (bandwidth.empty()) return link;
  const std::string automatic = "auto:", real = "real:";
  if (bandwidth.compare(0, automatic.size(), automatic) == 0) {
    link.forward_passes = number_in("--bandwidth", bandwidth.substr(automatic.size()), 0.01, 1000.0);
    return link;
  }
  link.real = bandwidth.compare(0, real.size(), real) == 0;
  if (link.real && link.delay_ms > 0)
    throw input_error("--delay: is for links that are made slow, not real:");
  link.megabits = number_in("--bandwidth", bandwidth.substr(link.real ? real.size() : 0), 0.001, 1e6);
  return link;
}

void add_options(CLI::App& app, Options& o, Written& w) {
  std::string group = "Experiment";
  const auto in_group = [&group](CLI::Option* option, const char* type = nullptr) {
    option->group(group);
    if (type != nullptr) option->type_name(type);
    return option;
  };
  const auto number = [&](const char* option, auto& target, auto least, auto most, const char* standard,
                          const char* text) {
    using Number = decltype(least);
    in_group(train::add_number<Number>(
                 app, option, target, [=](Number value) { return value >= least && value <= most; },
                 fmt::format("a number from {} to {}", least, most), standard, text),
             "N");
  };
  constexpr std::int64_t many = 1'000'000;
  in_group(train::add_choice(app, "--task", task_words, o.task, "the task to learn, see below"));
  in_group(app.add_option("--method", w.methods, "runs from the same parameters, see below"), "LIST")
      ->default_str(w.methods);
  number("--stages", o.stages, 1, 4, "4", "ranks, one for each: 1, 2 or 4");
  number("--replicas", o.replicas, 1, 64, "1", "of the pipeline, which share each batch");
  in_group(
      train::add_choice(app, "--averaging", averaging_words, o.averaging, "of gradients, between replicas"));
  in_group(train::add_choice(app, "--transport", transport_words, o.transport, "between stages"));
  number("--batch", o.batch, std::int64_t{1}, many, "64, texts 16", "examples of a step");
  number("--epochs", o.epochs, 1, 10'000, "8", "passes over the examples");
  number("--examples", o.examples, std::int64_t{1}, many, "all", "to fine-tune on, at most");
  number("--held-out", o.held_out, std::int64_t{1}, many, "all, glosses 1000", "to test with, at most");
  number("--learning-rate", o.learning_rate, 1e-9, 10.0, "0.0003, text 0.001, glosses 0.0001", "of Adam");
  number("--warm-up", o.warm_up, 0.0, 1.0, "0, glosses 0.1", "share of the steps in which it rises to that");
  in_group(train::add_file(app, "--pretrained", o.pretrained, "FOLDER", "with a BERT, for glosses"));
  number("--epochs-before", o.epochs_before, 0, 10'000, "3, text 1, glosses 0",
         "of training before the model is cut");
  in_group(app.add_option("--seeds", w.seeds, "runs of each method; mean and deviation are shown"), "LIST")
      ->default_str(w.seeds);

  group = "Messages";
  number("--forward-bits", w.forward_bits, 1, 32, "4", "of methods without their own bits");
  number("--backward-bits", w.backward_bits, 1, 32, "32", "the same");
  in_group(train::add_choice(app, "--granularity", granularity_words, w.granularity,
                             "elements that share a scale; row: an example"))
      ->default_str("row, text 64, glosses 128");
  in_group(train::add_choice(app, "--memory", memory_words, w.memory, "the format of examples' copies"));
  in_group(train::add_file(app, "--mapped", o.mapped, "FOLDER", "keep them in files there, not in RAM"));
  in_group(train::add_choice(app, "--first", first_words, w.first, "how examples travel at first"));

  group = "Schedule";
  number("--micro-batch", o.micro_batch, std::int64_t{1}, many, "16, texts 4",
         "examples that travel at once");
  in_group(train::add_choice(app, "--schedule", schedule_words, o.schedule.gpipe, "order of passes"));
  number("--ahead", o.schedule.other.ahead, 0, 31, "1",
         "of 1f1b: additional micro-batches for each later stage");
  number("--window", o.window, 1, 8, "2", "messages that may be under way");
  in_group(app.add_flag("--recompute", o.recompute, "keep inputs of a stage alone, run it again"));
  in_group(app.add_option("--bandwidth", w.bandwidth,
                          "make links slow; auto:X: an fp32 message takes X forward passes; "
                          "real:MBIT: they are that slow, which predictions need to know"),
           "MBIT|auto:X|real:MBIT");
  number("--delay", o.link.delay_ms, 0.0, 10'000.0, "", "additional ms of each message");

  group = "Output";
  in_group(train::add_file(app, "--json", o.json, "FILE",
                           "write all that was found; -: a line in place of the table"));
  in_group(train::add_file(app, "--plot", o.plot, "FILE.svg", "draw it"));
  in_group(train::add_file(app, "--cache", o.cache, "FOLDER", "keep the pretrained parameters there"));
  in_group(app.add_flag("--quiet", o.quiet, "no progress"));
  number("--deadline", o.deadline, 0.1, 1e6, "600", "seconds that a stage waits for another");

  train::add_help(app);
  app.footer(help_footer);
}

/// What depends on several options.
void complete(const CLI::App& app, const Written& given, Options& o) {
  Written written = given;
  const bool text = o.task != Task::pictures, glosses = o.task == Task::glosses;
  const auto missing = [&app](const char* option) { return app.count(option) == 0; };
  if (missing("--batch")) o.batch = text ? 16 : 64;
  if (missing("--micro-batch")) o.micro_batch = std::min<std::int64_t>(o.batch, text ? 4 : 16);
  if (missing("--learning-rate")) o.learning_rate = glosses ? 1e-4 : text ? 1e-3 : 3e-4;
  if (missing("--warm-up") && glosses) o.warm_up = 0.1;
  if (missing("--held-out") && glosses) o.held_out = 1000;
  if (missing("--examples") && glosses) o.examples = 2000;
  if (missing("--method") && glosses)
    written.methods = "exact,changes:4/8,changes:3/6,changes:2/4,direct:2/4";
  if (missing("--epochs-before")) o.epochs_before = glosses ? 0 : text ? 1 : 3;
  if (glosses && o.epochs_before > 0)
    throw input_error("--epochs-before: glosses begin with pretrained parameters");
  if (glosses == o.pretrained.empty())
    throw input_error(glosses ? "--task glosses needs --pretrained FOLDER"
                              : "--pretrained: requires --task glosses");
  if (missing("--granularity")) {
    const bool plain = written.memory == Memory::fp16 && written.first == First::fp32;
    written.granularity = glosses          ? Granularity::wide_block
                          : text || !plain ? Granularity::block
                                           : Granularity::row;
  }
  if (o.batch % o.replicas != 0)
    throw input_error(fmt::format("--replicas: a batch of {} can't be shared by {}", o.batch, o.replicas));
  if (o.averaging == Averaging::one_bit && o.replicas == 1)
    throw input_error("--averaging 1-bit: requires --replicas");
  if (o.stages == 3) throw input_error("--stages: '3' is not 1, 2 or 4");
  if (!missing("--ahead") && o.schedule.gpipe) throw input_error("--ahead: requires --schedule 1f1b");
  if (o.schedule.lead() > 4 * terse::index_t{o.window} && !o.schedule.gpipe)
    throw input_error("--ahead: needs a larger --window, a quarter of ahead + 1");
  o.link = link_of(written.bandwidth, o.link);
  for (const std::string& one : split(written.methods, ',')) o.codings.push_back(coding_of(one, written));
  if (o.codings.empty()) throw input_error("--method: needs one at least");
  for (const std::string& one : split(written.seeds, ','))
    o.seeds.push_back(number_in<std::uint64_t>("--seeds", one, 0, 1'000'000'000));
  if (o.seeds.empty()) throw input_error("--seeds: needs one at least");
  train::check_picture("--plot", o.plot);
}

}  // namespace

const char* name(Task task) { return train::word_of(task_words, task); }
const char* name(Averaging averaging) { return train::word_of(averaging_words, averaging); }

std::optional<Options> parse_options(int argc, const char* const* argv, std::FILE* out) {
  Options options;
  Written written;
  CLI::App app("Fine-tunes a model that is cut into stages, with each of several ways to send activations.",
               "pipeline");
  app.formatter(std::make_shared<train::HelpFormatter>());
  app.get_formatter()->column_width(34);
  add_options(app, options, written);
  if (!train::parse(app, argc, argv, out)) return std::nullopt;
  complete(app, written, options);
  return options;
}

void check_files(const Options& options) {
  if (options.json != "-") train::check_output("--json", options.json);
  train::check_drawing("--plot", options.plot);
  std::error_code ignored;
  for (const auto& [option, folder] : {std::pair{"--mapped", options.mapped},
                                       {"--cache", options.cache},
                                       {"--pretrained", options.pretrained}})
    if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
      throw input_error(fmt::format("{}: there is no directory '{}'", option, folder));
}

}  // namespace pipeline

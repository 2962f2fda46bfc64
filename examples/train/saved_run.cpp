// SPDX-License-Identifier: Apache-2.0
#include "saved_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "idx.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* state_file = "train-state.json";
constexpr const char* marker_file = "COMPLETE";
constexpr std::string_view prefix = "step-";
constexpr std::size_t kept = 2;

// The number of a step's directory, or nothing for whatever else lies there.
std::optional<std::int64_t> step_of(const fs::path& directory) {
  const std::string name = directory.filename().string();
  if (name.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  std::int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + prefix.size(), end, step);
  if (result.ec != std::errc{} || result.ptr != end || step < 0) return std::nullopt;
  return step;
}

// Directories of steps by their step, complete ones or the others.
std::map<std::int64_t, fs::path> directories(const fs::path& parent, bool complete) {
  std::map<std::int64_t, fs::path> found;
  std::error_code fault;
  for (fs::directory_iterator entry(parent, fault), end; !fault && entry != end; entry.increment(fault))
    if (const std::optional<std::int64_t> step = step_of(entry->path()))
      if (std::error_code ignored; fs::exists(entry->path() / marker_file, ignored) == complete)
        found[*step] = entry->path();
  return found;
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(path.string() + ": can't be written");
}

// JSON has no NaN and no infinity.
std::vector<double> numbers_of(const json& array) {
  std::vector<double> numbers;
  for (const json& value : array)
    numbers.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  return numbers;
}

// In the words of the command line where the setting is an option.
std::string described(const std::string& key, const std::string& value) {
  if (key == "optimizer") return "the optimizer " + value;
  if (key == "pictures") return value + " training pictures";
  if (key == "checksum") return "training pictures and labels of the checksum " + value;
  return "--" + key + " " + value;
}

void compare(const fs::path& directory, const Settings& saved, const Settings& now) {
  const auto check = [&](const std::string& key, const std::string& value) {
    const auto found = saved.find(key);
    const std::string before = found == saved.end() ? "?" : found->second;
    if (before != value)
      throw input_error(fmt::format("--resume: '{}' was saved with {}, but now it is {}", directory.string(),
                                    described(key, before), value));
  };
  // These first: another optimizer has other settings, and other pictures are of another checksum.
  for (const char* key : {"optimizer", "pictures"}) check(key, now.at(key));
  for (const auto& [key, value] : now) check(key, value);
}

SavedRun read_saved_run(const fs::path& directory, std::int64_t step, const Settings& settings) {
  const fs::path path = directory / state_file;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw input_error("--resume: '" + path.string() + "' can't be read");
  SavedRun saved;
  saved.directory = directory;
  saved.step = step;
  Settings saved_settings;
  try {
    const json state = json::parse(file);
    saved_settings = state.at("settings").get<Settings>();
    saved.train_loss = numbers_of(state.at("train_loss"));
    saved.bytes_after_step = state.at("bytes_after_step").get<std::vector<std::uint64_t>>();
    const json& seconds = state.at("seconds");
    saved.seconds = {seconds.at("compute").get<double>(), seconds.at("local_passes").get<double>(),
                     seconds.at("communication").get<double>(), seconds.at("total").get<double>()};
    for (const json& rank : state.at("sent"))
      saved.sent.push_back({rank.at("bytes").get<std::uint64_t>(),
                            rank.at("compressed_step").get<std::uint64_t>(),
                            rank.at("dense_step").get<std::uint64_t>(), rank.at("rounds").get<std::int64_t>(),
                            rank.at("in_steps").get<double>(), rank.at("waiting").get<double>()});
    const auto steps = static_cast<std::size_t>(step);
    if (state.at("step").get<std::int64_t>() != step || saved.train_loss.size() != steps ||
        saved.bytes_after_step.size() != steps)
      throw input_error("--resume: '" + path.string() + "' disagrees with its directory about the step");
  } catch (const json::exception&) {
    throw input_error("--resume: '" + path.string() + "' is damaged");
  }
  compare(directory, saved_settings, settings);
  if (std::to_string(saved.sent.size()) != settings.at("ranks"))
    throw input_error("--resume: '" + path.string() + "' is damaged");
  return saved;
}

}  // namespace

fs::path step_directory(const std::string& root, Optimizer optimizer, std::int64_t step) {
  return fs::path(root) / name(optimizer) / fmt::format("{}{:08}", prefix, step);
}

std::string rank_file(int rank, int ranks) { return fmt::format("rank-{}-of-{}.safetensors", rank, ranks); }

std::optional<SavedRun> find_saved_run(const std::string& root, Optimizer optimizer,
                                       const Settings& settings) {
  const auto found = directories(fs::path(root) / name(optimizer), true);
  if (found.empty()) return std::nullopt;
  return read_saved_run(found.rbegin()->second, found.rbegin()->first, settings);
}

void check_nothing_newer(const std::string& root, Optimizer optimizer, std::int64_t step) {
  const auto found = directories(fs::path(root) / name(optimizer), true);
  if (!found.empty() && found.rbegin()->first > step)
    throw input_error(fmt::format(
        "--checkpoint: '{}' already holds step {} of {}; give --resume {} to go on from there, or another "
        "directory",
        root, found.rbegin()->first, name(optimizer), root));
}

void open_directory(const fs::path& directory) {
  std::error_code fault;
  fs::create_directories(directory, fault);
  if (!fault) fs::remove(directory / marker_file, fault);
  if (fault) throw std::runtime_error(directory.string() + ": can't be written: " + fault.message());
}

void complete_directory(const SavedRun& saved, const Settings& settings) {
  json ranks = json::array();
  for (const Sent& sent : saved.sent)
    ranks.push_back({{"bytes", sent.bytes},
                     {"compressed_step", sent.compressed_step},
                     {"dense_step", sent.dense_step},
                     {"rounds", sent.rounds},
                     {"in_steps", sent.in_steps},
                     {"waiting", sent.waiting}});
  const json state{{"step", saved.step},
                   {"settings", settings},
                   {"train_loss", saved.train_loss},
                   {"bytes_after_step", saved.bytes_after_step},
                   {"seconds",
                    {{"compute", saved.seconds.compute},
                     {"local_passes", saved.seconds.local_passes},
                     {"communication", saved.seconds.communication},
                     {"total", saved.seconds.total}}},
                   {"sent", ranks}};
  write_file(saved.directory / state_file, state.dump() + "\n");
  write_file(saved.directory / marker_file, "");

  // What can't be removed only takes room.
  std::error_code ignored;
  const fs::path parent = saved.directory.parent_path();
  for (const auto& [step, directory] : directories(parent, false)) fs::remove_all(directory, ignored);
  const auto complete = directories(parent, true);
  std::size_t superfluous = complete.size() > kept ? complete.size() - kept : 0;
  for (const auto& [step, directory] : complete) {
    if (superfluous-- == 0) break;
    // In this order: a directory that is half removed must not look complete.
    fs::remove(directory / marker_file, ignored);
    fs::remove_all(directory, ignored);
  }
}

}  // namespace train

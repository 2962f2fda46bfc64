// SPDX-License-Identifier: Apache-2.0
#include "saved_run.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "input_error.hpp"
#include "terse/checkpoint/places.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

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
  if (key == "ranks") return value + " ranks at its beginning";
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

/// What train-state.json holds.
struct State {
  Settings settings;
  SavedRun run;
};

/// Throws checkpoint_error for what is damaged.
State read_state(const terse::checkpoint::Manifest& manifest) {
  const auto damaged = [&](const std::string& how) {
    throw terse::checkpoint_error("checkpoint '" + (manifest.folder() / state_file).string() + "': " + how);
  };
  State state;
  SavedRun& saved = state.run;
  try {
    const json held = json::parse(manifest.contents(state_file));
    state.settings = held.at("settings").get<Settings>();
    saved.step = held.at("step").get<std::int64_t>();
    saved.train_loss = numbers_of(held.at("train_loss"));
    saved.bytes_after_step = held.at("bytes_after_step").get<std::vector<std::uint64_t>>();
    const json& seconds = held.at("seconds");
    saved.seconds = {seconds.at("compute").get<double>(), seconds.at("local_passes").get<double>(),
                     seconds.at("communication").get<double>(), seconds.at("total").get<double>()};
    for (const json& rank : held.at("sent"))
      saved.sent.push_back({rank.at("bytes").get<std::uint64_t>(),
                            rank.at("compressed_step").get<std::uint64_t>(),
                            rank.at("dense_step").get<std::uint64_t>(), rank.at("rounds").get<std::int64_t>(),
                            rank.at("in_steps").get<double>(), rank.at("waiting").get<double>()});
  } catch (const json::exception&) {
    damaged("is none of this trainer");
  }
  const auto steps = static_cast<std::size_t>(manifest.step());
  if (static_cast<std::uint64_t>(saved.step) != manifest.step() || saved.train_loss.size() != steps ||
      saved.bytes_after_step.size() != steps ||
      saved.sent.size() != static_cast<std::size_t>(manifest.world()))
    damaged("disagrees with its manifest about the step or the ranks");
  return state;
}

}  // namespace

fs::path checkpoints_of(const std::string& root, const Method& optimizer) {
  return fs::path(root) / name(optimizer);
}

std::string state_of(const SavedRun& saved, const Settings& settings) {
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
  return state.dump() + "\n";
}

SavedRun read_saved_run(const terse::checkpoint::Manifest& manifest, const Wanted& wanted) {
  const State read = read_state(manifest);
  compare(manifest.folder(), read.settings, wanted.settings);
  if (manifest.world() != wanted.ranks && !wanted.elastic)
    throw input_error(
        fmt::format("--resume: '{}' was saved by {} ranks, and now there are {}: start as many, or give "
                    "--elastic, which shares each step's pictures out among those there are",
                    manifest.folder().string(), manifest.world(), wanted.ranks));
  return read.run;
}

std::optional<SavedRun> find_saved_run(const std::string& root, const Method& optimizer,
                                       const Wanted& wanted) {
  std::string why;
  for (const fs::path& folder : terse::checkpoint::folders_below(checkpoints_of(root, optimizer))) {
    try {
      return read_saved_run(terse::checkpoint::Manifest::read(folder), wanted);
    } catch (const terse::checkpoint_error& fault) {
      why += std::string(why.empty() ? "" : "; ") + fault.what();
    }
  }
  if (!why.empty()) throw input_error("--resume: " + why);
  return std::nullopt;
}

std::optional<int> ranks_at_start(const std::string& root, const Method& optimizer) {
  for (const fs::path& folder : terse::checkpoint::folders_below(checkpoints_of(root, optimizer))) {
    try {
      return std::stoi(read_state(terse::checkpoint::Manifest::read(folder)).settings.at("ranks"));
    } catch (const std::exception&) {  // find_saved_run says it
    }
  }
  return std::nullopt;
}

void check_nothing_newer(const std::string& root, const Method& optimizer, std::int64_t step) {
  for (const fs::path& folder : terse::checkpoint::folders_below(checkpoints_of(root, optimizer))) {
    std::uint64_t there = 0;
    try {
      there = terse::checkpoint::Manifest::read(folder).step();
    } catch (const terse::checkpoint_error&) {
      continue;  // the next one may be whole
    }
    if (there > static_cast<std::uint64_t>(step))
      throw input_error(
          fmt::format("--checkpoint: '{}' already holds step {} of {}; give --resume {} to continue from "
                      "there, or another directory",
                      root, there, name(optimizer), root));
    return;
  }
}

terse::checkpoint::RunLock lock_checkpoints(const std::string& root) {
  try {
    return terse::checkpoint::RunLock(root);
  } catch (const terse::folder_in_use_error& fault) {
    throw input_error(std::string("--checkpoint: ") + fault.what(), terse::checkpoint::in_use_status);
  } catch (const terse::checkpoint_error& fault) {
    throw input_error(std::string("--checkpoint: ") + fault.what());
  }
}

bool same_directory(const std::string& one, const std::string& other) {
  return !one.empty() && !other.empty() && fs::weakly_canonical(one) == fs::weakly_canonical(other);
}

}  // namespace train

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "terse/checkpoint/agreement.hpp"
#include "terse/checkpoint/checkpoint.hpp"
#include "terse/checkpoint/draft.hpp"
#include "terse/checkpoint/elastic.hpp"
#include "terse/checkpoint/manifest.hpp"
#include "terse/checkpoint/places.hpp"
#include "terse/checkpoint/run_lock.hpp"
#include "terse/transport/call.hpp"

// A run's checkpoints below one folder, which all ranks can access:
//
//     state/step-00000500/rank-0-of-4.safetensors    written by `save`, one per rank
//     state/step-00000500/position                   any other file that the program adds
//     state/step-00000500/manifest.json              names all of these
//     state/run.lock                                 names the run that saves here
//
// A checkpoint is written as step-00000500.partial. It is renamed when all of it is on disk, with the manifest
// written last.

namespace terse::checkpoint {

/// Returns the name of a rank's own file in a checkpoint.
inline std::string rank_file(int rank, int ranks) {
  return "rank-" + std::to_string(rank) + "-of-" + std::to_string(ranks) + ".safetensors";
}

/// Loads the files that all ranks saved into a checkpoint; uses load_elastic if their number was different.
/// Collective, like `load` and load_elastic.
template <class Optimizer>
void load(const Manifest& manifest, Optimizer& optimizer,
          out<typename Optimizer::runs_on, typename Optimizer::parameter> parameters) {
  const int saved = manifest.world();
  if (saved == optimizer.size())
    return load(manifest.file(rank_file(optimizer.rank(), saved)), optimizer, parameters);
  std::vector<std::filesystem::path> files;
  for (int rank = 0; rank < saved; ++rank) files.push_back(manifest.file(rank_file(rank, saved)));
  load_elastic(files, optimizer, parameters);
}

/// The checkpoint from which a run resumes.
struct Loaded {
  Manifest manifest;
  std::vector<std::string> skipped;  ///< newer checkpoints that could not be loaded, with reasons
};

/// The use of a folder: loading only, or also saving, which is limited to one job at a time.
enum class Use { read, read_and_write };

/// A run's checkpoints. All ranks construct it and make the same calls.
template <Transport T>
class Folder {
 public:
  /// Reserves the folder for this run until destruction (see RunLock), unless it is only read. Collective. Only the
  /// newest `kept` checkpoints are kept. Throws checkpoint_error on all ranks, or folder_in_use_error if another run
  /// has the folder.
  Folder(const std::filesystem::path& root, T& channel, Use use = Use::read_and_write, std::size_t kept = 2)
      : channel_(channel), kept_(std::max<std::size_t>(1, kept)) {
    const terse::detail::Call call(terse::detail::Verb::folder);
    together([&] {
      // Absolute, so that checkpoints stay together, next to the lock, when the program changes its working
      // directory.
      detail::naming(root, [&] { root_ = std::filesystem::absolute(root); });
      if (use == Use::read_and_write && first()) lock_.emplace(root_);
    });
  }

  /// Writes a checkpoint: each rank its own file, and rank 0 `texts`. Collective. The checkpoint exists once all of
  /// it is on disk, not before; then older ones are removed. If one rank can't write, or if there is a checkpoint of
  /// a later step that has not been loaded, throws checkpoint_error on all ranks; then nothing has changed.
  template <class Optimizer>
  void save(Optimizer& optimizer, in<typename Optimizer::runs_on, typename Optimizer::parameter> parameters,
            const Texts& texts = {}) {
    save(optimizer.steps(), [&](Draft& draft) {
      checkpoint::save(draft.file(rank_file(channel_.rank(), channel_.size())), optimizer, parameters);
      if (!first()) return;
      for (const auto& [name, contents] : texts) draft.write(name, contents);
    });
  }
  /// Writes a checkpoint of the files that `write(draft)` adds, on each rank.
  void save(std::uint64_t step, const std::function<void(Draft&)>& write) {
    const terse::detail::Call call(terse::detail::Verb::save);
    detail::Place place;
    together([&] {
      if (first()) place = prepare(step);
    });
    place = broadcast(channel_, place);
    const std::filesystem::path partial = partial_of(place);
    try {
      std::vector<Part> mine;
      together([&] {
        Draft draft(partial);
        write(draft);
        for (const std::string& name : draft.names()) mine.push_back(described(partial, name));
      });
      const std::vector<std::string> parts = detail::texts_of_all(channel_, detail::text_of(mine));
      together([&] {
        if (!first()) return;
        complete(place, parts);
        remove_superfluous();
      });
    } catch (...) {
      std::error_code ignored;
      if (first()) std::filesystem::remove_all(partial, ignored);
      throw;
    }
  }

  /// Loads the newest checkpoint that is whole on all ranks; returns nothing if there are no checkpoints. Collective:
  /// all ranks choose the same one, and if none can be loaded, all throw checkpoint_error. A whole checkpoint of
  /// another run is not skipped, but causes a foreign_checkpoint_error on all ranks. If it throws, nothing has
  /// changed. With Elastic::yes the checkpoint may be of another number of ranks, see load_elastic.
  template <class Optimizer>
  std::optional<Loaded> load(Optimizer& optimizer,
                             out<typename Optimizer::runs_on, typename Optimizer::parameter> parameters,
                             Elastic elastic = Elastic::no) {
    return load([&](const Manifest& manifest) { checkpoint::load(manifest, optimizer, parameters); },
                elastic);
  }
  /// Loads by `load(manifest)`, which is collective and must throw on all ranks or on none. When it is called, all
  /// files exist and belong to this save. The data in files of `write` are verified when they are read.
  std::optional<Loaded> load(const std::function<void(const Manifest&)>& load,
                             Elastic elastic = Elastic::no) {
    const terse::detail::Call call(terse::detail::Verb::load);
    const std::vector<detail::Place> places = places_of_first();
    std::vector<std::string> skipped;
    for (auto place = places.rbegin(); place != places.rend(); ++place) {
      std::optional<Manifest> manifest;
      const detail::Attempt attempt([&] {
        const std::filesystem::path folder = place->below(root_);
        together([&] { manifest = of_these_sizes(folder, elastic); });
        if (!equal(channel_, manifest->text()))
          detail::fail(folder, "is another one for other ranks: all must see the same files");
        together([&] { for_own_parts(*manifest, &Manifest::verify); });
        load(*manifest);
      });
      const std::string why = why_not(attempt);
      if (why.empty()) {
        skipped_ = {places.rbegin(), place};
        return Loaded{std::move(*manifest), std::move(skipped)};
      }
      skipped.push_back(why);
    }
    if (skipped.empty()) return std::nullopt;
    std::string all =
        "none of the checkpoints in '" + root_.string() + "' can be loaded; nothing was changed";
    for (const std::string& why : skipped) all += "\n  " + why;
    throw checkpoint_error(all, channel_.rank());
  }

  /// Runs `work` on each rank; if it throws on one, all ranks throw. Collective.
  template <class Work>
  void together(Work work) {
    detail::together(channel_, std::move(work));
  }

 private:
  bool first() const { return channel_.rank() == 0; }
  std::filesystem::path partial_of(const detail::Place& place) const {
    return place.below(root_).string() + ".partial";
  }
  bool is_skipped(const detail::Place& place) const {
    return std::find(skipped_.begin(), skipped_.end(), place) != skipped_.end();
  }

  /// Returns on all ranks the places that rank 0 sees.
  std::vector<detail::Place> places_of_first() {
    std::string bytes;
    together([&] {
      if (!first()) return;
      const std::vector<detail::Place> mine = detail::places_below(root_);
      bytes.assign(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(detail::Place));
    });
    bytes = detail::texts_of_all(channel_, bytes)[0];
    std::vector<detail::Place> places(bytes.size() / sizeof(detail::Place));
    if (!places.empty()) std::memcpy(places.data(), bytes.data(), bytes.size());
    return places;
  }

  /// Runs `check` on the files that this rank has written. A rank that did not save takes those of its number modulo
  /// the number of saving ranks.
  void for_own_parts(const Manifest& manifest, void (Manifest::*check)(const Part&) const) const {
    for (const Part& part : manifest.parts())
      if (part.rank % channel_.size() == channel_.rank()) (manifest.*check)(part);
  }
  /// Reads the manifest and checks all sizes first, so that no rank hashes for hours if another rank can refuse at
  /// once.
  Manifest of_these_sizes(const std::filesystem::path& folder, Elastic elastic) const {
    Manifest manifest = Manifest::read(folder);
    if (elastic == Elastic::no && manifest.world() != channel_.size())
      throw foreign_checkpoint_error(
          detail::about(folder, "was saved by " + std::to_string(manifest.world()) +
                                    " ranks, and this run has " + std::to_string(channel_.size()) +
                                    ": start as many, or load it with checkpoint::Elastic::yes"));
    for_own_parts(manifest, &Manifest::verify_size);
    return manifest;
  }

  /// Returns an empty text if all ranks have loaded, else the reason to skip this checkpoint. Throws for checkpoints
  /// that must not be skipped.
  std::string why_not(const detail::Attempt& attempt) {
    using detail::Outcome;
    const std::vector<Outcome> outcomes = all_gather(channel_, attempt.outcome);
    const auto is = [](Outcome what) { return [what](Outcome one) { return one == what; }; };
    if (std::all_of(outcomes.begin(), outcomes.end(), is(Outcome::good))) return {};
    const std::vector<std::string> words =
        detail::texts_of_all(channel_, attempt.own ? attempt.words : std::string());
    const auto told =
        std::find_if(words.begin(), words.end(), [](const std::string& text) { return !text.empty(); });
    const std::string why =
        told == words.end() ? attempt.words : "rank " + std::to_string(told - words.begin()) + ": " + *told;
    for (const Outcome stop : {Outcome::foreign, Outcome::failed})
      if (std::any_of(outcomes.begin(), outcomes.end(), is(stop))) {
        if (attempt.outcome == stop) std::rethrow_exception(attempt.failure);
        detail::throw_as(stop, why, channel_.rank());
      }
    // A custom `load` has thrown on some ranks only, and the other ranks can't undo theirs.
    if (why.empty())
      throw checkpoint_error(
          "other ranks could not load this checkpoint, which this rank has loaded. Make the optimizer again "
          "and load another checkpoint on all ranks",
          channel_.rank());
    return why;
  }

  detail::Place prepare(std::uint64_t step) {
    detail::Place place{step, 1};
    for (const detail::Place& other : detail::places_below(root_)) {
      if (other.step > step && !is_skipped(other))
        detail::fail(other.below(root_), "is of a later step than " + std::to_string(step) +
                                             ", which is to be saved: load it, or save to another folder");
      if (other.step == step) place.attempt = other.attempt + 1;
    }
    remove_partials();
    detail::naming(partial_of(place), [&] { detail::make_directories(partial_of(place)); });
    return place;
  }

  /// Flushes a file to disk and describes it, whether or not `write` wrote it.
  Part described(const std::filesystem::path& folder, const std::string& name) const {
    detail::naming(folder / name, [&] {
      const detail::Descriptor file(::open((folder / name).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
      if (file.value() < 0) detail::refused("cannot open");
      detail::sync(file.value());
    });
    try {
      return detail::part_of(folder, name, channel_.rank(), true);
    } catch (const checkpoint_error&) {
      return detail::part_of(folder, name, channel_.rank(), false);
    }
  }

  void complete(const detail::Place& place, const std::vector<std::string>& texts) {
    const std::filesystem::path partial = partial_of(place);
    std::vector<Part> parts;
    std::set<std::string> names;
    for (const std::string& text : texts)
      for (Part& found : detail::parts_of(text)) {
        const Part& part = parts.emplace_back(std::move(found));
        if (!names.insert(part.name).second)
          detail::fail(partial,
                       "has two files named " + detail::quoted(part.name) + ": ranks give different names");
        std::error_code fault;
        if (std::filesystem::file_size(partial / part.name, fault) != part.bytes || fault)
          detail::fail(partial, "lacks the file of rank " + std::to_string(part.rank) +
                                    " for rank 0: all must see the same folder");
      }
    const Manifest manifest(partial, place.step, channel_.size(), std::move(parts));
    detail::naming(partial, [&] {
      replace_file(partial / detail::manifest_file, manifest.text());
      if (::rename(partial.c_str(), place.below(root_).c_str()) != 0) detail::refused("cannot be renamed");
      detail::sync_directory(root_);
    });
  }

  // Errors are ignored: if files can't be moved or removed, they only take space.
  void remove_superfluous() {
    std::erase_if(skipped_, [&](const detail::Place& place) {
      std::error_code fault;
      const std::filesystem::path folder = place.below(root_);
      std::filesystem::rename(folder, folder.string() + ".skipped", fault);
      return !fault;
    });
    std::vector<detail::Place> places;
    try {
      places = detail::places_below(root_);
    } catch (const checkpoint_error&) {
      return;  // the new checkpoint exists, even if older ones stay
    }
    std::erase_if(places, [&](const detail::Place& place) { return is_skipped(place); });
    std::error_code ignored;
    for (std::size_t k = 0; k + kept_ < places.size(); ++k)
      // Renamed first, so that a half-removed folder isn't taken for a checkpoint.
      std::filesystem::rename(places[k].below(root_), partial_of(places[k]), ignored);
    remove_partials();
  }
  void remove_partials() {
    std::error_code fault, ignored;
    for (std::filesystem::directory_iterator entry(root_, fault), end; !fault && entry != end;
         entry.increment(fault))
      if (const std::string name = entry->path().filename().string();
          name.rfind("step-", 0) == 0 && entry->path().extension() == ".partial")
        std::filesystem::remove_all(entry->path(), ignored);
  }

  std::filesystem::path root_;
  T& channel_;
  std::size_t kept_;
  std::optional<RunLock> lock_;
  std::vector<detail::Place> skipped_;  // skipped by `load`; renamed by the next `save`
};

}  // namespace terse::checkpoint

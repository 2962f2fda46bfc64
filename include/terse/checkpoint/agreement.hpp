// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terse/checkpoint/safetensors.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/collectives.hpp"

// A load changes all ranks or none: every rank reads its own file, tells the others its result, and only then
// changes anything.

namespace terse::checkpoint::detail {

/// Returns the step of a file, which two entries state.
std::uint64_t step_of(const std::filesystem::path& file, const File& read);

/// The result of a rank's part in collective work.
enum class Outcome : std::uint64_t { good, unusable, foreign, in_use, failed };

/// An attempt at `work` that stores any exception, since the other ranks wait for this rank's result.
struct Attempt {
  Outcome outcome = Outcome::good;
  std::exception_ptr failure;
  std::string words;
  bool own = true;  // true if `words` are about this rank's own fault

  template <class Work>
  explicit Attempt(Work work) {
    try {
      work();
    } catch (const foreign_checkpoint_error& fault) {
      keep(Outcome::foreign, fault.what(), fault.rank());
    } catch (const folder_in_use_error& fault) {
      keep(Outcome::in_use, fault.what(), fault.rank());
    } catch (const checkpoint_error& fault) {
      keep(Outcome::unusable, fault.what(), fault.rank());
    } catch (const mismatch_error& fault) {
      keep(Outcome::unusable, fault.what(), fault.rank());
    } catch (const std::exception& fault) {
      keep(Outcome::failed, fault.what());
    } catch (...) {
      keep(Outcome::failed, "failed");
    }
  }

 private:
  void keep(Outcome what, const char* why, int rank = -1);
};

[[noreturn]] void throw_as(Outcome outcome, const std::string& sentence, int rank);

/// Runs `read()`, which checks this rank's file and returns its findings, a struct of std::uint64_t with `step`.
/// Returns the findings of all ranks, by rank. Collective. Throws on every rank unless all files are good and of one
/// step. A rank whose own file is at fault throws its own checkpoint_error; the others throw one that names the rank.
/// Different steps are a mismatch_error. `who` is the name for a rank.
template <class T, class Read>
auto read_together(const std::filesystem::path& file, T& channel, const std::string& who, Read read) {
  using Found = decltype(read());
  struct Verdict {
    Outcome outcome = Outcome::good;
    Found found{};
  } mine;
  const Attempt attempt([&] { mine.found = read(); });
  mine.outcome = attempt.outcome;
  Assembly<Verdict, T> everyone(channel);
  std::vector<Found> all;
  std::optional<Outcome> fault;
  int culprit = 0;
  for (const Verdict& verdict : everyone(channel, mine, Phase::setup)) {
    all.push_back(verdict.found);
    if (fault) continue;
    if (verdict.outcome == Outcome::good)
      ++culprit;
    else
      fault = verdict.outcome;
  }
  if (attempt.failure) std::rethrow_exception(attempt.failure);
  if (fault)
    throw_as(*fault == Outcome::foreign ? Outcome::foreign : Outcome::unusable,
             who + " " + std::to_string(culprit) + " can't load its file ('" + file.string() +
                 "' is good); nothing was changed",
             channel.rank());
  const std::uint64_t own = all[static_cast<std::size_t>(channel.rank())].step;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].step != own)
      throw mismatch_error(who + " " + std::to_string(rank) + " has a checkpoint of step " +
                               std::to_string(all[rank].step) + ", this " + who + " of step " +
                               std::to_string(own) + " ('" + file.string() +
                               "'); nothing was changed. Load files of one save",
                           channel.rank());
  return all;
}

/// Returns the texts of all ranks to every rank. Collective.
template <class T>
std::vector<std::string> texts_of_all(T& channel, const std::string& mine) {
  const std::vector<std::uint64_t> sizes = all_gather(channel, static_cast<std::uint64_t>(mine.size()));
  const std::size_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::string padded = mine, all(longest * sizes.size(), ' ');
  padded.resize(longest);
  terse::detail::CheckedGather gather(channel.size());
  if (longest > 0)
    gather(channel, std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)), Phase::setup);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank)
    texts.push_back(all.substr(rank * longest, sizes[rank]));
  return texts;
}

/// Runs `work` on every rank. Collective: if it throws on one rank, all throw. That rank throws its own error, the
/// others one with its text. If it was a checkpoint_error, so is theirs, of the same kind.
template <class T, class Work>
void together(T& channel, Work work) {
  const Attempt attempt(work);
  const std::vector<Outcome> outcomes = all_gather(channel, attempt.outcome);
  const auto bad =
      std::find_if(outcomes.begin(), outcomes.end(), [](Outcome one) { return one != Outcome::good; });
  if (bad == outcomes.end()) return;
  const std::vector<std::string> words = texts_of_all(channel, attempt.words);
  if (attempt.failure) std::rethrow_exception(attempt.failure);
  const auto culprit = bad - outcomes.begin();
  throw_as(*bad, "rank " + std::to_string(culprit) + " failed: " + words[static_cast<std::size_t>(culprit)],
           channel.rank());
}

}  // namespace terse::checkpoint::detail

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/agreement.ipp"
#endif

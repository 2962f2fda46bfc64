// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terse/checkpoint/checkpoint.hpp"
#include "terse/checkpoint/dealing.hpp"
#include "terse/transport/assembly.hpp"

// Loading of a checkpoint of W ranks by another number of ranks. Each element of each part, at an index of the arena,
// follows one rule:
//
//     numbers           the mean over those ranks that held it
//     errors, copies    dealt out: each rank that holds it now gets the value of one old rank, plus a share that keeps the mean
//     counts, codes     equal on all ranks that held it, or refused; codes of errors are copied if each goes to equally
//                       many ranks
//
// So values that are equal on all ranks keep their bits. A value that only one rank held, such as its chunk's second
// error, moves with its bits to the rank that now holds that index. If each rank has a separate value, each new rank
// gets the mean. Methods use such values, errors and momenta included, by their mean over the ranks, and this mean
// is kept up to rounding. Errors stay different: with equal errors all ranks would round their messages the same
// way, and the mean would have the error of a single rank.

namespace terse::checkpoint {

/// The permission to load a checkpoint of another number of ranks.
enum class Elastic { no, yes };

namespace detail {

/// A source that lists the requested buffers, a line for each, so that one walk serves both this list and loading.
class ListExtents : public Source {
 public:
  void check(const Wanted& wanted) const override {
    if (wanted.shape.size() == 1)
      lines_ << wanted.offset << ' ' << wanted.offset + wanted.shape[0] << ' ' << wanted.name << '\n';
  }
  void read(const Wanted&, const Put&) const override {}
  std::string text() const { return lines_.str(); }

 private:
  mutable std::ostringstream lines_;
};

/// Returns the extents of an optimizer's buffers, by rank. Collective.
template <class Optimizer>
std::vector<Extents> extents_of(Optimizer& optimizer) {
  const ListExtents mine;
  optimizer.walk(Restore{mine, false});
  std::vector<Extents> of_ranks;
  for (const std::string& text : texts_of_all(optimizer.channel(), mine.text()))
    of_ranks.push_back(extents_in(text));
  return of_ranks;
}

/// The files of all ranks of one save.
class AllFiles : public Source {
 public:
  /// Opens `files`, by rank. `now` has the extents of the loading ranks, and `mine` is this rank's number among
  /// them. Throws checkpoint_error unless all files are good, of one step, and as `expected` describes.
  AllFiles(std::vector<std::filesystem::path> files, std::vector<Extents> now, int mine, Metadata expected,
           const Layout& layout);

  std::uint64_t step() const noexcept { return step_; }

  /// Throws foreign_checkpoint_error if the extents of all ranks together are not the saved ones, so that no value
  /// is lost or invented.
  void require_same_extents() const;

  void check(const Wanted& wanted) const override {
    const std::vector<Held> held = all(wanted);
    if (wanted.dtype[0] == 'U') gather(wanted, held, nullptr);
  }
  void read(const Wanted& wanted, const Put& put) const override { gather(wanted, all(wanted), put); }

 private:
  /// A rank's part of a tensor.
  struct Held {
    std::size_t rank;
    const std::byte* data;
    index_t begin, end;  // indices of the arena
  };

  static constexpr std::string_view state = "state.";
  /// Checks whether ranks may hold different parts of a tensor.
  static bool is_buffer(const std::string& name, const std::vector<index_t>& shape) {
    return name.rfind(state, 0) == 0 && shape.size() == 1;
  }
  static index_t offset_of(const File& file, const std::string& name);
  static Extent at(const Extents& extents, const std::string& name) {
    const auto found = extents.find(name);
    return found == extents.end() ? Extent{} : found->second;
  }
  static std::string said(const Extent& extent) {
    if (extent == Extent{}) return "no elements";
    return "the elements from " + std::to_string(extent.begin) + " up to " + std::to_string(extent.end);
  }

  std::vector<Held> all(const Wanted& wanted) const;
  static index_t elements(const std::vector<index_t>& shape) {
    index_t count = 1;
    for (const index_t extent : shape) count *= extent;
    return count;
  }

  void gather(const Wanted& wanted, const std::vector<Held>& held, const Put& put) const;

  /// Checks whether a tensor is redistributed. Copies of each rank's messages, which `torn` indicates, also belong
  /// to that rank's momentum: both are redistributed. Copies of methods that mix, which have no `torn`, are means,
  /// like the sums over neighbours' copies.
  bool deals(const Wanted& wanted) const {
    return is_error(wanted.name) || (wanted.dtype == "F32" && files_[0].contains("state.torn"));
  }
  /// Gathers block by block. Elements that no rank held, such as those between two chunks that are never compressed,
  /// are 0.
  template <class T>
  void gather(const Wanted& wanted, const std::vector<Held>& held, const Put& put) const {
    constexpr index_t block = 4096;
    std::vector<T> values(block * held.size());  // for each element, the values of all ranks that held it
    std::vector<std::size_t> ranks;              // for each element, the number of these ranks
    std::vector<Heirs> heirs(block);             // empty unless dealt out
    std::vector<T> result;
    const index_t last = wanted.offset + elements(wanted.shape);
    for (index_t first = wanted.offset; first < last; first += block) {
      const index_t behind = std::min(first + block, last);
      ranks.assign(static_cast<std::size_t>(behind - first), 0);
      for (const Held& part : held)
        for (index_t i = std::max(first, part.begin); i < std::min(behind, part.end); ++i) {
          const auto place = static_cast<std::size_t>(i - first);
          std::memcpy(&values[place * held.size() + ranks[place]++],
                      part.data + (i - part.begin) * static_cast<index_t>(sizeof(T)), sizeof(T));
        }
      if (deals(wanted)) heirs = heirs_of(now_, mine_, wanted.name, first, behind);
      result.clear();
      for (std::size_t place = 0; place < ranks.size(); ++place) {
        const std::span<const T> old(&values[place * held.size()], ranks[place]);
        if (const std::size_t other = differing(old, heirs[place]); other < old.size())
          refuse(wanted, held, first + static_cast<index_t>(place), other);
        result.push_back(combined(old, heirs[place]));
      }
      if (put)
        put(static_cast<std::size_t>(first - wanted.offset) * sizeof(T),
            std::as_bytes(std::span<const T>(result)));
    }
  }
  /// Throws for element i; `place` is the rank's place among those that held it.
  [[noreturn]] void refuse(const Wanted& wanted, const std::vector<Held>& held, index_t i,
                           std::size_t place) const;

  std::vector<std::filesystem::path> paths_;
  std::vector<Extents> now_;  // of the loading ranks; `mine_` is this rank's number
  std::size_t mine_;
  std::vector<File> files_;
  std::uint64_t step_ = 0;
};

}  // namespace detail

/// Reads the state that W ranks saved into the optimizer of another number of ranks: `files` by their rank. Each rank
/// reads all files, mapped into memory, so all ranks must see the same ones. Collective: all ranks load, or none. It
/// has the errors of `load`, and a foreign_checkpoint_error for state that another number of ranks can't load
/// (docs/checkpoints.md).
template <class Optimizer>
void load_elastic(const std::vector<std::filesystem::path>& files, Optimizer& optimizer,
                  out<typename Optimizer::runs_on, typename Optimizer::parameter> parameters) {
  const terse::detail::Call call(terse::detail::Verb::load);
  if (files.empty()) throw usage_error("load_elastic needs the files of all ranks", optimizer.rank());
  detail::require_between_steps(optimizer);
  terse::detail::await_messages(optimizer.channel());
  const std::vector<detail::Extents> now = detail::extents_of(optimizer);
  detail::load_from(files[0], optimizer, parameters, [&] {
    auto all = std::make_unique<detail::AllFiles>(files, now, optimizer.rank(), detail::describe(optimizer),
                                                  optimizer.layout());
    all->require_same_extents();
    const std::uint64_t step = all->step();
    return detail::Opened{std::move(all), step};
  });
}

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/elastic.ipp"
#endif

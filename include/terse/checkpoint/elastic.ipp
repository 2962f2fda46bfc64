// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "terse/checkpoint/elastic.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE AllFiles::AllFiles(std::vector<std::filesystem::path> files, std::vector<Extents> now, int mine,
                              Metadata expected, const Layout& layout)
    : paths_(std::move(files)), now_(std::move(now)), mine_(static_cast<std::size_t>(mine)) {
  expected["world"] = std::to_string(paths_.size());
  for (std::size_t rank = 0; rank < paths_.size(); ++rank) {
    files_.push_back(File::map(paths_[rank]));
    expected["rank"] = std::to_string(rank);
    require_same(paths_[rank], files_[rank], expected, layout);
    if (const std::uint64_t step = step_of(paths_[rank], files_[rank]); rank == 0)
      step_ = step;
    else if (step != step_)
      fail(paths_[rank], "is of step " + std::to_string(step) + ", that of rank 0 of step " +
                             std::to_string(step_) + ": load files of one save");
  }
}

TERSE_CORE void AllFiles::require_same_extents() const {
  const Extents expected = joined(now_);
  Extents saved;
  for (const File& file : files_)
    for (const Tensor& tensor : file.tensors())
      if (is_buffer(tensor.name, tensor.shape)) {
        const index_t begin = offset_of(file, tensor.name);
        saved[tensor.name].take(begin, begin + tensor.shape[0]);
      }
  for (const Extents* some : {&std::as_const(saved), &expected})
    for (const auto& [name, ignored] : *some) {
      const Extent was = at(saved, name), is = at(expected, name);
      if (was != is)
        throw foreign_checkpoint_error(
            about(paths_[0], "and the other files of this save hold " + said(was) + " of " + quoted(name) +
                                 ", and with this number of ranks and these settings there are " + said(is) +
                                 ": continue with " + std::to_string(files_.size()) + " ranks"));
    }
}

TERSE_CORE index_t AllFiles::offset_of(const File& file, const std::string& name) {
  const auto found = file.metadata().find("offset." + name.substr(state.size()));
  if (found == file.metadata().end()) return 0;
  index_t offset = 0;
  std::istringstream(found->second) >> offset;
  return std::clamp<index_t>(offset, 0, std::numeric_limits<index_t>::max() / 2);
}

TERSE_CORE std::vector<AllFiles::Held> AllFiles::all(const Wanted& wanted) const {
  std::vector<AllFiles::Held> held;
  for (std::size_t rank = 0; rank < files_.size(); ++rank) {
    const File& file = files_[rank];
    if (!file.contains(wanted.name)) continue;
    const std::vector<index_t>& shape = file.shape(wanted.name);
    const bool cut = is_buffer(wanted.name, wanted.shape) && shape.size() == 1;
    const std::span<const std::byte> data =
        file.tensor(wanted.name, wanted.dtype, cut ? shape : wanted.shape);
    const index_t begin = cut ? offset_of(file, wanted.name) : 0;
    held.push_back({rank, data.data(), begin, begin + elements(shape)});
  }
  if (held.empty()) fail(paths_[0], "and the other files of this save have no tensor " + quoted(wanted.name));
  return held;
}

TERSE_CORE void AllFiles::gather(const Wanted& wanted, const std::vector<Held>& held, const Put& put) const {
  if (wanted.dtype == "F32") return gather<float>(wanted, held, put);
  if (wanted.dtype == "BF16") return gather<bf16>(wanted, held, put);
  if (wanted.dtype == "F16") return gather<fp16>(wanted, held, put);
  if (wanted.dtype == "U8") return gather<std::uint8_t>(wanted, held, put);
  if (wanted.dtype == "U16") return gather<std::uint16_t>(wanted, held, put);
  gather<std::uint64_t>(wanted, held, put);
}

TERSE_CORE void AllFiles::refuse(const Wanted& wanted, const std::vector<Held>& held, index_t i,
                                 std::size_t place) const {
  auto part = held.begin();
  while (!(part->begin <= i && i < part->end) || place-- > 0) ++part;
  const std::string ranks = std::to_string(files_.size());
  throw foreign_checkpoint_error(
      about(paths_[part->rank], "has another " + quoted(wanted.name) +
                                    " than a rank before it. These are counts or codes, which have no mean "
                                    "for another number of ranks: continue with " +
                                    ranks + " ranks" +
                                    (is_error(wanted.name) ? ", or with a multiple of " + ranks : "")));
}

}  // namespace terse::checkpoint::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "terse/checkpoint/folder.hpp"
#include "terse/interop/data_parallel.hpp"

// Checkpoints of a LibTorch module on all ranks: the optimizer, its parameters, and the module's buffers. Buffers,
// such as the running statistics of batch normalization, are separate on each rank and in no arena.
//
//     terse::checkpoint::Folder folder("checkpoints", transport);
//     terse::interop::load(folder, model);
//     for (...) {
//       ...
//       terse::interop::save(folder, model);
//     }

namespace terse::interop {

namespace detail {

inline std::string buffers_file(int rank, int ranks) {
  return "buffers-" + std::to_string(rank) + "-of-" + std::to_string(ranks) + ".pt";
}

/// Reads buffers that `save` wrote. Throws checkpoint_error unless they match the module's in number, shapes and
/// types.
inline std::vector<torch::Tensor> read_buffers(const checkpoint::Manifest& manifest, int rank,
                                               const torch::nn::Module& module) {
  const auto mine = module.named_buffers();
  if (mine.is_empty()) return {};
  const std::string name = buffers_file(rank % manifest.world(), manifest.world());
  const auto refuse = [&](const std::string& why) {
    throw checkpoint_error("'" + manifest.file(name).string() + "' " + why, rank);
  };
  if (std::none_of(manifest.parts().begin(), manifest.parts().end(),
                   [&](const auto& part) { return part.name == name; }))
    refuse(
        "is not there: this checkpoint was saved without the module's buffers; load it by "
        "folder.load(model.optimizer(), "
        "model.parameters()), and they stay as they are");
  std::istringstream contents(manifest.contents(name));
  std::vector<torch::Tensor> read;
  torch::load(read, contents);
  if (read.size() != mine.size())
    refuse("has " + std::to_string(read.size()) + " buffers, and the module " + std::to_string(mine.size()));
  for (std::size_t k = 0; k < read.size(); ++k)
    if (const torch::Tensor& own = mine[k].value();
        read[k].sizes() != own.sizes() || read[k].dtype() != own.dtype())
      refuse("has a buffer of another shape or type for '" + mine[k].key() + "'");
  return read;
}

}  // namespace detail

/// Writes a checkpoint of a model, see Folder::save. Collective, and throws the errors of Folder::save.
template <class R, Transport T>
void save(checkpoint::Folder<T>& folder, DataParallel<R, T>& model, const checkpoint::Texts& texts = {}) {
  const int rank = model.optimizer().rank(), ranks = model.optimizer().size();
  folder.save(model.optimizer().steps(), [&](checkpoint::Draft& draft) {
    checkpoint::save(draft.file(checkpoint::rank_file(rank, ranks)), model.optimizer(), model.parameters());
    if (const auto buffers = model.module().buffers(); !buffers.empty())
      torch::save(buffers, draft.file(detail::buffers_file(rank, ranks)).string());
    if (rank == 0)
      for (const auto& [name, contents] : texts) draft.write(name, contents);
  });
}

/// Loads the newest checkpoint that is whole, see Folder::load; returns nothing if there are no checkpoints. For a
/// checkpoint of another number of ranks W, which requires Elastic::yes, rank r gets the buffers of rank r mod W.
/// Collective. Throws the errors of Folder::load. If the checkpoint has no buffers, or others than the module,
/// throws checkpoint_error; then nothing has changed.
template <class R, Transport T>
std::optional<checkpoint::Loaded> load(checkpoint::Folder<T>& folder, DataParallel<R, T>& model,
                                       checkpoint::Elastic elastic = checkpoint::Elastic::no) {
  const auto load_all = [&](const checkpoint::Manifest& manifest) {
    std::vector<torch::Tensor> read;
    folder.together([&] { read = detail::read_buffers(manifest, model.optimizer().rank(), model.module()); });
    checkpoint::load(manifest, model.optimizer(), model.parameters());
    const torch::NoGradGuard no_gradients;
    const std::vector<torch::Tensor> mine = model.module().buffers();
    for (std::size_t k = 0; k < mine.size(); ++k) mine[k].copy_(read[k]);
  };
  return folder.load(load_all, elastic);
}

}  // namespace terse::interop

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "terse/checkpoint/file_io.hpp"
#include "terse/checkpoint/safetensors.hpp"
#include "terse/checkpoint/state.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/view.hpp"

// The parameters that a checkpoint and a layout, perhaps of two models, have in common.

namespace terse::checkpoint {

/// Names of the segments that a checkpoint and a layout don't have in common.
struct Unmatched {
  std::vector<std::string> missing;     ///< only in the layout
  std::vector<std::string> unexpected;  ///< only in the checkpoint
  std::vector<std::string> mismatched;  ///< in both, with different shapes or dtypes
};

namespace detail {

inline constexpr const char* checkpoint_format = "terse checkpoint 1";

inline std::string parameters_name(const std::string& segment) { return "parameters." + segment; }

void require_size(const std::filesystem::path& file, const Layout& layout, index_t size);

template <class P, class Space>
void restore_segment(const Restore& restore, const Segment& segment, view<P, Space> parameters) {
  restore.take({parameters_name(segment.name), dtype_of<P>(), segment.shape, 0},
               parameters.part(segment.offset, segment.count));
}

/// Compares in the order of the layout, or of the file. Calls `match` with each common segment. `dtype` is that of
/// the parameters; if it is empty, only shapes count.
template <class Match>
Unmatched compare(const File& file, const Layout& layout, const std::string& dtype, Match match) {
  std::map<std::string, const Tensor*> saved;
  for (const Tensor& tensor : file.tensors()) saved[tensor.name] = &tensor;
  Unmatched result;
  for (const Segment& segment : layout.segments()) {
    const auto found = saved.find(parameters_name(segment.name));
    if (found == saved.end()) {
      result.missing.push_back(segment.name);
      continue;
    }
    const Tensor& tensor = *found->second;
    if (tensor.shape == segment.shape && (dtype.empty() || tensor.dtype == dtype))
      match(segment);
    else
      result.mismatched.push_back(segment.name);
    saved.erase(found);
  }
  const std::string prefix = parameters_name("");
  for (const Tensor& tensor : file.tensors())
    if (tensor.name.rfind(prefix, 0) == 0 && saved.count(tensor.name) > 0)
      result.unexpected.push_back(tensor.name.substr(prefix.size()));
  return result;
}

/// Describes the first difference between a checkpoint's segments and a layout's, whose hashes are known to differ.
std::string layout_difference(const File& file, const Layout& layout);

template <Number P, class Space>
Unmatched load_matching(const std::filesystem::path& file, const Layout& layout, view<P, Space> parameters) {
  require_size(file, layout, parameters.size());
  const File read = File::map(file);
  if (const std::string& format = read.metadata("format"); format != checkpoint_format)
    throw foreign_checkpoint_error(about(file, "is no optimizer's: its format is '" + format + "'"));
  const OneFile source(read);
  return compare(read, layout, dtype_of<P>(), [&](const Segment& segment) {
    restore_segment({source, true}, segment, parameters);
  });
}

}  // namespace detail

/// Loads the parameters of those segments that a file of `save` has under the same name, with the same shape and
/// dtype. The model may be another one, for example with a new last layer. Other segments stay unchanged, and the
/// result names them. Optimizer state isn't loaded: make a new optimizer, which begins with its first step.
///
/// Not collective. If ranks must start equal, let them load the same file. Before anything changes, throws
/// checkpoint_error if the file is damaged, and foreign_checkpoint_error if it is not an optimizer's. The file is
/// mapped into memory.
inline Unmatched load_matching(const std::filesystem::path& file, const Layout& layout,
                               view<float> parameters) {
  return detail::load_matching(file, layout, parameters);
}
/// Loads 16-bit parameters, and parameters on a device, in the same way.
template <Number P, class Space>
Unmatched load_matching(const std::filesystem::path& file, const Layout& layout, view<P, Space> parameters) {
  return detail::load_matching(file, layout, parameters);
}

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/matching.ipp"
#endif

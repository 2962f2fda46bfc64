// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <bit>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terse/core/layout.hpp"

// Checkpoint files in the safetensors format, which other tools can read, with two digests in their metadata.
// "digest_data" is XXH3-128 of the data section; "digest_header" is XXH3-128 of everything before it, with zeros in
// place of its own 32 digits. The digests detect damage, not forgery, since a forger can also compute them. So the
// reader checks every length as well.

namespace terse::checkpoint {

static_assert(std::endian::native == std::endian::little && sizeof(std::size_t) == 8,
              "checkpoints are written as they lie in the memory of a 64-bit little-endian machine");

/// A view of a named array inside a checkpoint; it doesn't own the memory.
struct Tensor {
  std::string name;                 ///< any UTF-8 but "__metadata__"
  std::string dtype;                ///< the format's name of it, such as "F32", "BF16" or "I64"
  std::vector<index_t> shape;       ///< the dimensions; empty for a scalar
  const std::byte* data = nullptr;  ///< the elements in row-major order; may be null if there are no elements
  std::size_t bytes = 0;            ///< product of `shape` times the size of an element, if that is known
};

/// The metadata of a checkpoint, in UTF-8.
using Metadata = std::map<std::string, std::string>;

namespace detail {

class Digest;

std::string described(const std::vector<index_t>& shape);

/// Returns the text of the header, padded and with its digests.
std::string compose(const std::filesystem::path& file, const std::vector<Tensor>& tensors, Metadata metadata);

}  // namespace detail

/// Writes a checkpoint completely or not at all: into a file next to the target, flushed to disk, then renamed over
/// the target. Makes missing directories. Adds "digest_data" and "digest_header" to the metadata, replacing existing
/// ones. Reads the tensors twice, without a copy; they must not change meanwhile.
///
/// Throws checkpoint_error for errors of the file system, and for text that is not UTF-8. Also for a tensor whose
/// name is taken, whose dtype is unknown, or whose bytes don't fit its shape. The target is then unchanged; it is
/// the new file only if the final flush of the directory fails.
void write(const std::filesystem::path& file, const std::vector<Tensor>& tensors, Metadata metadata);

/// A checkpoint in memory, of which every bit is verified.
class File {
 public:
  /// Reads and verifies a file that `write` wrote. The file is not trusted: each size that it declares is checked
  /// against the file's own. Throws checkpoint_error if anything is wrong, or if the file does not fit into memory.
  /// Holds the data once.
  static File read(const std::filesystem::path& file) {
    return open(file, {.mapped = false, .foreign = false});
  }
  /// Maps the file into memory instead of reading it, for files larger than RAM. Tensors then start at any address.
  /// If another process changes the file in place, which `write` never does, the tensors change unnoticed.
  static File map(const std::filesystem::path& file) {
    return open(file, {.mapped = true, .foreign = false});
  }

  /// Reads a safetensors file of any writer, such as a pretrained model's. The header is checked as strictly, and
  /// against the file's size. If the file has digests of terse, they are verified; otherwise damaged data are not
  /// noticed. A tensor of an unknown dtype is listed, with the bytes that its offsets declare; only `tensor` refuses
  /// it.
  static File read_foreign(const std::filesystem::path& file) {
    return open(file, {.mapped = false, .foreign = true});
  }
  /// Maps a file of any writer into memory, as `map` does, and reads only its header unless it has digests. Tensors
  /// start at any address, even an odd one: copy elements out by std::memcpy, or use `read_foreign`.
  static File map_foreign(const std::filesystem::path& file) {
    return open(file, {.mapped = true, .foreign = true});
  }

  /// All metadata, the digests included.
  const Metadata& metadata() const noexcept { return metadata_; }
  /// Returns one value. Throws checkpoint_error if there is none of that name.
  const std::string& metadata(const std::string& name) const;

  /// Checks whether there is a tensor of that name.
  bool contains(const std::string& name) const { return places_.count(name) > 0; }
  /// Returns the shape of a tensor. Throws checkpoint_error if it is missing.
  const std::vector<index_t>& shape(const std::string& name) const { return find(name).shape; }
  /// Returns the bytes of a tensor. They live as long as this file and, unless it is mapped, start at a multiple of
  /// 64. Throws checkpoint_error if the tensor is missing, has another dtype or shape, or a dtype whose size is
  /// unknown.
  std::span<const std::byte> tensor(const std::string& name, const std::string& dtype,
                                    const std::vector<index_t>& shape) const;
  /// All tensors in the order of their data; views into this file.
  const std::vector<Tensor>& tensors() const noexcept { return tensors_; }

 private:
  /// The unit of memory: each tensor starts at a new line, for any alignment in the file.
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static std::size_t lines_of(const Tensor& tensor) {
    return tensor.bytes / sizeof(Line) + (tensor.bytes % sizeof(Line) != 0);
  }

  struct How {
    bool mapped, foreign;
  };

  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* place) const { ::munmap(place, bytes); }
  };

  File() = default;

  static File open(const std::filesystem::path& file, How how);
  const Tensor& find(const std::string& name) const;

  void load(How how);

  /// Takes metadata and tensors from the header, and returns the number of 64-byte lines that the data need.
  std::size_t place(const std::string& text, std::size_t size, bool foreign);

  void load_data(int fd, std::size_t lines, std::optional<detail::Digest>& digest);
  /// Maps the data, which begin at byte `at` of the file.
  void map_data(int fd, std::size_t size, std::size_t at, std::optional<detail::Digest>& digest);

  std::filesystem::path file_;
  Metadata metadata_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t> places_;  // by name, into `tensors_`
  std::unique_ptr<Line[]> lines_;
  std::unique_ptr<std::byte, Unmap> mapping_;
};

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/safetensors.ipp"
#endif

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terse/checkpoint/digest.hpp"
#include "terse/checkpoint/dtypes.hpp"
#include "terse/checkpoint/file_io.hpp"
#include "terse/checkpoint/open_file.hpp"
#include "terse/checkpoint/strict_json.hpp"
#include "terse/core/layout.hpp"

// Checkpoint files in the safetensors format, so that other tools read them, with two digests in their
// metadata: "digest_data" is XXH3-128 of the data section; "digest_header" is XXH3-128 of everything before
// it, taken with zeros for its own 32 digits. The digests find damage, not malice: whoever forges a file can
// forge them too, so the reader checks every length all the same.

namespace terse::checkpoint {

static_assert(std::endian::native == std::endian::little && sizeof(std::size_t) == 8,
              "checkpoints are written as they lie in the memory of a 64-bit little-endian machine");

/// A named array inside a checkpoint. It is a view: the memory belongs to someone else.
struct Tensor {
  std::string name;                 ///< any UTF-8 but "__metadata__"
  std::string dtype;                ///< the format's name of it, such as "F32", "BF16" or "I64"
  std::vector<index_t> shape;       ///< the dimensions; empty for a scalar
  const std::byte* data = nullptr;  ///< the elements in row-major order; may be null if there are none
  std::size_t bytes = 0;            ///< product of `shape` times the size of an element, if that is known
};

/// What a checkpoint says about itself, in UTF-8.
using Metadata = std::map<std::string, std::string>;

namespace detail {

inline std::string described(const std::vector<index_t>& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size() && d < 16; ++d)
    text += (d > 0 ? ", " : "") + std::to_string(shape[d]);
  return text + (shape.size() > 16 ? ", ...]" : "]");
}

/// A foreign file's dtype may be anything.
inline std::string described(const std::string& dtype, const std::vector<index_t>& shape) {
  return (bits_of(dtype) > 0 ? dtype : quoted(dtype)) + " " + described(shape);
}

/// Returns the size of a tensor. Fails for an unknown dtype, a negative dimension, an overflow and a part of a byte.
inline std::size_t bytes_of(const std::filesystem::path& file, const std::string& name,
                            const std::string& dtype, const std::vector<index_t>& shape) {
  const std::size_t bits = bits_of(dtype);
  if (bits == 0) fail(file, "tensor " + quoted(name) + " has the unknown dtype " + quoted(dtype));
  std::size_t elements = 1, bytes = 0;
  bool possible = true;
  for (const index_t extent : shape)
    possible = possible && extent >= 0 &&
               !__builtin_mul_overflow(elements, static_cast<std::size_t>(extent), &elements);
  // By eights of elements, whose bytes are whole and do not overflow early.
  if (!possible || elements % 8 * bits % 8 != 0 || __builtin_mul_overflow(elements / 8, bits, &bytes) ||
      __builtin_add_overflow(bytes, elements % 8 * bits / 8, &bytes))
    fail(file, "tensor " + quoted(name) + " has the impossible shape " + described(dtype, shape));
  return bytes;
}

/// The text of the header, padded and with its digests.
inline std::string compose(const std::filesystem::path& file, const std::vector<Tensor>& tensors,
                           Metadata metadata) {
  Json header = Json::object();
  Digest data;
  std::size_t end = 0;
  for (const Tensor& tensor : tensors) {
    const std::string name = "tensor " + quoted(tensor.name);
    if (tensor.name == "__metadata__" || header.contains(tensor.name)) fail(file, name + " is a taken name");
    if (bytes_of(file, tensor.name, tensor.dtype, tensor.shape) != tensor.bytes)
      fail(file, name + " has " + std::to_string(tensor.bytes) + " bytes, which is not the size of " +
                     described(tensor.dtype, tensor.shape));
    if (tensor.data == nullptr && tensor.bytes > 0) fail(file, name + " has no data");
    const std::size_t begin = end;
    if (__builtin_add_overflow(end, tensor.bytes, &end)) fail(file, "the tensors are too large together");
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", Json::array({begin, end})}};
    data.add(tensor.data, tensor.bytes);
  }
  metadata["digest_data"] = data.hex();
  metadata["digest_header"] = std::string(digits, '0');
  header["__metadata__"] = std::move(metadata);
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    fail(file, "a tensor's name or the metadata is not UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > max_header) fail(file, "the header would be longer than any reader accepts (100 MB)");
  const std::size_t position = digest_position(text);
  return text.replace(position, digits, header_digest(text, position));
}

/// A tensor's entry in the header: the view, without data yet, and the offset of its first byte. A dtype that is unknown
/// is refused, or, if `foreign`, has the size that its offsets declare.
inline std::pair<std::size_t, Tensor> parse_tensor(const std::filesystem::path& file, const std::string& name,
                                                   const Json& entry, bool foreign) {
  const auto check = [&](bool good) {
    if (!good) fail(file, "tensor " + quoted(name) + " has a malformed entry in the header");
  };
  check(entry.is_object() && entry.size() == 3 && entry.contains("dtype") && entry.contains("shape") &&
        entry.contains("data_offsets"));
  const Json& shape = entry["shape"];
  const Json& offsets = entry["data_offsets"];
  check(entry["dtype"].is_string() && shape.is_array() && offsets.is_array() && offsets.size() == 2 &&
        offsets[0].is_number_unsigned() && offsets[1].is_number_unsigned());
  Tensor tensor{name, entry["dtype"].get<std::string>(), {}, nullptr, 0};
  for (const Json& extent : shape) {
    check(extent.is_number_unsigned() && extent.get<std::uint64_t>() <= std::numeric_limits<index_t>::max());
    tensor.shape.push_back(extent.get<index_t>());
  }
  const auto begin = offsets[0].get<std::size_t>(), end = offsets[1].get<std::size_t>();
  tensor.bytes =
      foreign && bits_of(tensor.dtype) == 0 ? end - begin : bytes_of(file, name, tensor.dtype, tensor.shape);
  if (end < begin || end - begin != tensor.bytes)
    fail(file,
         "tensor " + quoted(name) + " has offsets that do not fit " + described(tensor.dtype, tensor.shape));
  return {begin, std::move(tensor)};
}

}  // namespace detail

/// Writes a checkpoint, all or nothing: into a file beside the target, to disk, then over the target by
/// renaming. Missing directories are made. The metadata gains "digest_data" and "digest_header", in place of
/// any it has. Reads the tensors twice, without a copy; they must not change meanwhile.
///
/// Throws checkpoint_error for a tensor whose name is taken, whose dtype is unknown or whose bytes don't fit
/// its shape, for text that is not UTF-8, and for whatever the file system refuses. The target is then as it
/// was; only if the directory itself can't be flushed at the very end does the new file stand in its place.
inline void write(const std::filesystem::path& file, const std::vector<Tensor>& tensors, Metadata metadata) {
  const std::string header = detail::compose(file, tensors, std::move(metadata));
  detail::naming(file, [&] {
    detail::make_directories(detail::target_of(file).parent_path());
    replace_file(file, [&](int fd) {
      const std::uint64_t length = header.size();
      detail::write_all(fd, &length, sizeof length);
      detail::write_all(fd, header.data(), header.size());
      for (const Tensor& tensor : tensors) detail::write_all(fd, tensor.data, tensor.bytes);
    });
  });
}

/// A checkpoint in memory, verified to the last bit.
class File {
 public:
  /// Reads and verifies a file that `write` wrote. The file is not trusted: no size that it declares is
  /// believed before it fits the file's own. Throws checkpoint_error if anything is amiss, and if the file
  /// does not fit into memory. Holds the data once.
  static File read(const std::filesystem::path& file) {
    return open(file, {.mapped = false, .foreign = false});
  }
  /// The same, but the data stay on disk and are mapped into memory: for what is larger than RAM. Tensors then start
  /// anywhere. Who changes the file in place meanwhile, which `write` never does, changes them unseen.
  static File map(const std::filesystem::path& file) {
    return open(file, {.mapped = true, .foreign = false});
  }

  /// Reads a safetensors file of any writer, such as a pretrained model's. The header is checked as strictly, and against
  /// the file's size. terse's digests are verified if the file has them; else damaged data are not noticed. A tensor of an
  /// unknown dtype is listed, with the bytes that its offsets declare, and only `tensor` refuses it.
  static File read_foreign(const std::filesystem::path& file) {
    return open(file, {.mapped = false, .foreign = true});
  }
  /// Maps such a file into memory, as `map` does, and reads its header alone unless it has digests. Tensors start anywhere,
  /// even at an odd address: copy elements out by std::memcpy, or use `read_foreign`.
  static File map_foreign(const std::filesystem::path& file) {
    return open(file, {.mapped = true, .foreign = true});
  }

  /// All metadata, the digests included.
  const Metadata& metadata() const noexcept { return metadata_; }
  /// One value. Throws checkpoint_error if there is none of that name.
  const std::string& metadata(const std::string& name) const {
    const auto found = metadata_.find(name);
    if (found == metadata_.end()) detail::fail(file_, "has no metadata " + detail::quoted(name));
    return found->second;
  }

  /// Whether there is a tensor of that name.
  bool contains(const std::string& name) const { return places_.count(name) > 0; }
  /// The shape of a tensor. Throws checkpoint_error if it is missing.
  const std::vector<index_t>& shape(const std::string& name) const { return find(name).shape; }
  /// The bytes of a tensor, which live as long as this file and start at a multiple of 64, unless it is mapped. Throws
  /// checkpoint_error if the tensor is missing, has another dtype or shape, or a dtype whose size is unknown.
  std::span<const std::byte> tensor(const std::string& name, const std::string& dtype,
                                    const std::vector<index_t>& shape) const {
    const Tensor& place = find(name);
    if (place.dtype != dtype || place.shape != shape)
      detail::fail(file_, "tensor " + detail::quoted(name) + ": expected " + detail::described(dtype, shape) +
                              ", found " + detail::described(place.dtype, place.shape));
    if (detail::bits_of(dtype) == 0)
      detail::fail(file_, "tensor " + detail::quoted(name) + " has the unknown dtype " +
                              detail::quoted(dtype) +
                              ", so its size cannot be checked; tensors() has its bytes");
    return {place.data, place.bytes};
  }
  /// All tensors in the order of their data; views into this file.
  const std::vector<Tensor>& tensors() const noexcept { return tensors_; }

 private:
  /// The unit of memory: tensors start at lines of their own, however they lie in the file.
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

  static File open(const std::filesystem::path& file, How how) {
    try {
      File result;
      result.file_ = file;
      result.load(how);
      return result;
    } catch (const std::bad_alloc&) {
      detail::fail(file, "does not fit into memory");
    }
  }
  const Tensor& find(const std::string& name) const {
    const auto found = places_.find(name);
    if (found == places_.end())
      detail::fail(file_, "has no tensor " + detail::quoted(name) + ", but " +
                              std::to_string(tensors_.size()) + " others" +
                              (tensors_.empty() ? "" : ", such as " + detail::quoted(tensors_.front().name)));
    return tensors_[found->second];
  }

  void load(How how) {
    const detail::OpenFile in(file_);
    const std::string text = in.header(how.foreign);
    const std::size_t begin = sizeof(std::uint64_t) + text.size();
    const std::size_t lines = place(detail::parse(file_, text), in.bytes() - begin, how.foreign);
    std::optional<detail::Digest> digest;
    if (!how.foreign || metadata_.count("digest_data") > 0) digest.emplace();
    if (how.mapped)
      map_data(in.fd(), in.bytes(), begin, digest);
    else
      load_data(in.fd(), lines, digest);
    if (digest && metadata("digest_data") != digest->hex())
      detail::fail(file_, "is damaged: the data does not match its digest");
  }

  /// Takes metadata and tensors from the header, and returns the lines of memory that the data needs.
  std::size_t place(const nlohmann::json& header, std::size_t size, bool foreign) {
    std::vector<std::pair<std::size_t, Tensor>> found;
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") {
        found.push_back(detail::parse_tensor(file_, name, entry, foreign));
        continue;
      }
      if (!entry.is_object()) detail::fail(file_, "the metadata is malformed");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) detail::fail(file_, "the metadata is malformed at " + detail::quoted(key));
        metadata_[key] = value.get<std::string>();
      }
    }
    // An empty tensor starts where the next one does, and comes first.
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first, a.second.bytes) < std::pair(b.first, b.second.bytes);
    });
    std::size_t end = 0, lines = 0;
    for (auto& [begin, tensor] : found) {
      if (begin != end)
        detail::fail(file_, "tensor " + detail::quoted(tensor.name) + " starts at byte " +
                                std::to_string(begin) + ", the one before it ends at " + std::to_string(end));
      end += tensor.bytes;
      lines += lines_of(tensor);
      places_[tensor.name] = tensors_.size();
      tensors_.push_back(std::move(tensor));
    }
    if (end != size)
      detail::fail(file_, "holds " + std::to_string(size) + " bytes of data, but its header declares " +
                              std::to_string(end));
    return lines;
  }

  void load_data(int fd, std::size_t lines, std::optional<detail::Digest>& digest) {
    lines_.reset(new Line[lines]);  // not make_unique, which would fill it with zeros first
    Line* line = lines_.get();
    for (Tensor& tensor : tensors_) {
      auto* const data = reinterpret_cast<std::byte*>(line);
      tensor.data = data;
      // In parts, so that the digest finds them still in the cache.
      for (std::size_t done = 0, part; done < tensor.bytes; done += part) {
        part = std::min(tensor.bytes - done, std::size_t{1} << 18);
        detail::read_all(file_, fd, data + done, part);
        if (digest) digest->add(data + done, part);
      }
      line += lines_of(tensor);
    }
  }
  /// The data begin `at` bytes into the file.
  void map_data(int fd, std::size_t size, std::size_t at, std::optional<detail::Digest>& digest) {
    void* const place = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (place == MAP_FAILED) detail::fail_errno(file_, "cannot be mapped into memory");
    mapping_ = {static_cast<std::byte*>(place), Unmap{size}};
    for (Tensor& tensor : tensors_) {
      tensor.data = mapping_.get() + at;
      if (digest) digest->add(tensor.data, tensor.bytes);  // else the data stay on disk until they are used
      at += tensor.bytes;
    }
  }

  std::filesystem::path file_;
  Metadata metadata_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t> places_;  // by name, into `tensors_`
  std::unique_ptr<Line[]> lines_;
  std::unique_ptr<std::byte, Unmap> mapping_;
};

}  // namespace terse::checkpoint

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>

#include "terse/checkpoint/digest.hpp"
#include "terse/checkpoint/dtypes.hpp"
#include "terse/checkpoint/file_io.hpp"
#include "terse/checkpoint/open_file.hpp"
#include "terse/checkpoint/replace_file.hpp"
#include "terse/checkpoint/safetensors.hpp"
#include "terse/checkpoint/strict_json.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE std::string described(const std::vector<index_t>& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size() && d < 16; ++d)
    text += (d > 0 ? ", " : "") + std::to_string(shape[d]);
  return text + (shape.size() > 16 ? ", ...]" : "]");
}

/// Describes a tensor; a foreign file's dtype may be anything.
TERSE_CORE std::string described(const std::string& dtype, const std::vector<index_t>& shape) {
  return (bits_of(dtype) > 0 ? dtype : quoted(dtype)) + " " + described(shape);
}

/// Returns the size of a tensor. Fails for an unknown dtype, a negative dimension, an overflow, and a size that is
/// not a whole number of bytes.
TERSE_CORE std::size_t bytes_of(const std::filesystem::path& file, const std::string& name,
                                const std::string& dtype, const std::vector<index_t>& shape) {
  const std::size_t bits = bits_of(dtype);
  if (bits == 0) fail(file, "tensor " + quoted(name) + " has the unknown dtype " + quoted(dtype));
  std::size_t elements = 1, bytes = 0;
  bool possible = true;
  for (const index_t extent : shape)
    possible = possible && extent >= 0 &&
               !__builtin_mul_overflow(elements, static_cast<std::size_t>(extent), &elements);
  // Counts groups of eight elements, whose bytes are a whole number, and which do not overflow early.
  if (!possible || elements % 8 * bits % 8 != 0 || __builtin_mul_overflow(elements / 8, bits, &bytes) ||
      __builtin_add_overflow(bytes, elements % 8 * bits / 8, &bytes))
    fail(file, "tensor " + quoted(name) + " has the impossible shape " + described(dtype, shape));
  return bytes;
}

TERSE_CORE std::string compose(const std::filesystem::path& file, const std::vector<Tensor>& tensors,
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

/// Parses a tensor's entry in the header. Returns the offset of its first byte, and the view, which has no data yet.
/// Refuses an unknown dtype or, if `foreign`, takes the size that its offsets declare.
TERSE_CORE std::pair<std::size_t, Tensor> parse_tensor(const std::filesystem::path& file,
                                                       const std::string& name, const Json& entry,
                                                       bool foreign) {
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

}  // namespace terse::checkpoint::detail

namespace terse::checkpoint {

TERSE_CORE void write(const std::filesystem::path& file, const std::vector<Tensor>& tensors,
                      Metadata metadata) {
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

TERSE_CORE const std::string& File::metadata(const std::string& name) const {
  const auto found = metadata_.find(name);
  if (found == metadata_.end()) detail::fail(file_, "has no metadata " + detail::quoted(name));
  return found->second;
}

TERSE_CORE std::span<const std::byte> File::tensor(const std::string& name, const std::string& dtype,
                                                   const std::vector<index_t>& shape) const {
  const Tensor& place = find(name);
  if (place.dtype != dtype || place.shape != shape)
    detail::fail(file_, "tensor " + detail::quoted(name) + ": expected " + detail::described(dtype, shape) +
                            ", found " + detail::described(place.dtype, place.shape));
  if (detail::bits_of(dtype) == 0)
    detail::fail(file_, "tensor " + detail::quoted(name) + " has the unknown dtype " + detail::quoted(dtype) +
                            ", so its size cannot be checked; tensors() has its bytes");
  return {place.data, place.bytes};
}

TERSE_CORE File File::open(const std::filesystem::path& file, How how) {
  try {
    File result;
    result.file_ = file;
    result.load(how);
    return result;
  } catch (const std::bad_alloc&) {
    detail::fail(file, "does not fit into memory");
  }
}

TERSE_CORE const Tensor& File::find(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end())
    detail::fail(file_, "has no tensor " + detail::quoted(name) + ", but " + std::to_string(tensors_.size()) +
                            " others" +
                            (tensors_.empty() ? "" : ", such as " + detail::quoted(tensors_.front().name)));
  return tensors_[found->second];
}

TERSE_CORE void File::load(How how) {
  const detail::OpenFile in(file_);
  const std::string text = in.header(how.foreign);
  const std::size_t begin = sizeof(std::uint64_t) + text.size();
  const std::size_t lines = place(text, in.bytes() - begin, how.foreign);
  std::optional<detail::Digest> digest;
  if (!how.foreign || metadata_.count("digest_data") > 0) digest.emplace();
  if (how.mapped)
    map_data(in.fd(), in.bytes(), begin, digest);
  else
    load_data(in.fd(), lines, digest);
  if (digest && metadata("digest_data") != digest->hex())
    detail::fail(file_, "is damaged: the data does not match its digest");
}

TERSE_CORE std::size_t File::place(const std::string& text, std::size_t size, bool foreign) {
  const detail::Json header = detail::parse(file_, text);
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

TERSE_CORE void File::load_data(int fd, std::size_t lines, std::optional<detail::Digest>& digest) {
  lines_.reset(new Line[lines]);  // not make_unique, which would fill it with zeros
  Line* line = lines_.get();
  for (Tensor& tensor : tensors_) {
    auto* const data = reinterpret_cast<std::byte*>(line);
    tensor.data = data;
    // In parts, so that the digest finds them in the cache.
    for (std::size_t done = 0, part; done < tensor.bytes; done += part) {
      part = std::min(tensor.bytes - done, std::size_t{1} << 18);
      detail::read_all(file_, fd, data + done, part);
      if (digest) digest->add(data + done, part);
    }
    line += lines_of(tensor);
  }
}

TERSE_CORE void File::map_data(int fd, std::size_t size, std::size_t at,
                               std::optional<detail::Digest>& digest) {
  void* const place = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (place == MAP_FAILED) detail::fail_errno(file_, "cannot be mapped into memory");
  mapping_ = {static_cast<std::byte*>(place), Unmap{size}};
  for (Tensor& tensor : tensors_) {
    tensor.data = mapping_.get() + at;
    if (digest) digest->add(tensor.data, tensor.bytes);  // else the data stay on disk until used
    at += tensor.bytes;
  }
}

}  // namespace terse::checkpoint

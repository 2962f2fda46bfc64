// SPDX-License-Identifier: Apache-2.0
#include "idx.hpp"

#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

namespace train {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr std::uint32_t images_magic = 0x00000803;  // unsigned bytes, three dimensions
constexpr std::uint32_t labels_magic = 0x00000801;  // unsigned bytes, one dimension
constexpr std::uint32_t side = 28;
constexpr std::uint32_t most_items = 1'000'000;
constexpr std::size_t most_bytes = 16 + std::size_t{most_items} * side * side;

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw input_error(path + ": " + reason);
}

std::string find_file(const std::string& directory, const std::string& name) {
  std::error_code fault;
  if (!std::filesystem::is_directory(directory, fault)) {
    std::string text = directory + ": no such directory";
    if (directory == default_data_directory)
      text += "; install the package dataset-fashion-mnist, or name the directory of the IDX files";
    throw input_error(text);
  }
  const std::filesystem::path plain = std::filesystem::path(directory) / name;
  for (const std::string& path : {plain.string(), plain.string() + ".gz"})
    if (std::filesystem::exists(path, fault)) return path;
  throw input_error(plain.string() + ": no such file, nor one with .gz");
}

Bytes read_file(const std::string& path) {
  std::error_code fault;
  if (!std::filesystem::is_regular_file(path, fault)) refuse(path, "not a regular file");
  const std::uintmax_t size = std::filesystem::file_size(path, fault);
  if (fault) refuse(path, "can't be read: " + fault.message());
  if (size > most_bytes) refuse(path, "too large for an IDX file of at most a million 28 x 28 pictures");

  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) refuse(path, std::string("can't be opened: ") + std::strerror(errno));
  Bytes bytes(static_cast<std::size_t>(size));
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) refuse(path, "can't be read");
  return bytes;
}

// gzread passes over bytes after the compressed stream in silence and treats a file with a damaged start as
// plain, so the stream is inflated here. The output grows as it comes: no length in the file is trusted.
Bytes inflate_file(const std::string& path, Bytes& compressed) {
  z_stream stream{};
  constexpr int gzip_only = 16 + MAX_WBITS;
  if (inflateInit2(&stream, gzip_only) != Z_OK) refuse(path, "zlib can't be started");
  const std::unique_ptr<z_stream, int (*)(z_streamp)> guard(&stream, inflateEnd);

  stream.next_in = compressed.data();
  stream.avail_in = static_cast<uInt>(compressed.size());
  Bytes bytes;
  std::array<unsigned char, 1 << 16> window;
  int status = Z_OK;
  while (status != Z_STREAM_END) {
    stream.next_out = window.data();
    stream.avail_out = static_cast<uInt>(window.size());
    status = inflate(&stream, Z_NO_FLUSH);
    if (status == Z_BUF_ERROR) refuse(path, "truncated: the gzip stream ends early");
    if (status != Z_OK && status != Z_STREAM_END)
      refuse(path, std::string("damaged gzip stream") + (stream.msg ? ": " + std::string(stream.msg) : ""));
    const std::size_t got = window.size() - stream.avail_out;
    if (bytes.size() + got > most_bytes)
      refuse(path, "too large for an IDX file of at most a million 28 x 28 pictures");
    bytes.insert(bytes.end(), window.data(), window.data() + got);
  }
  if (stream.avail_in != 0)
    refuse(path, std::to_string(stream.avail_in) + " bytes too many after the gzip stream");
  return bytes;
}

Bytes read_contents(const std::string& path) {
  Bytes bytes = read_file(path);
  const bool compressed = bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
  return compressed ? inflate_file(path, bytes) : bytes;
}

// Checks the header and that the contents are exactly as long as it says; returns the dimensions.
template <std::size_t Dimensions>
std::array<std::uint32_t, Dimensions> read_header(const std::string& path, const Bytes& bytes,
                                                  std::uint32_t magic, const char* content) {
  constexpr std::size_t header = 4 * (1 + Dimensions);
  const auto word = [&bytes](std::size_t index) {
    std::uint32_t value = 0;
    for (std::size_t byte = 4 * index; byte < 4 * index + 4; ++byte) value = value << 8 | bytes[byte];
    return value;
  };
  if (bytes.size() < header) refuse(path, "truncated: shorter than an IDX header");
  if (word(0) != magic) {
    char text[96];
    std::snprintf(text, sizeof text, "not an IDX file of %s: its magic number is 0x%08x, not 0x%08x", content,
                  static_cast<unsigned>(word(0)), static_cast<unsigned>(magic));
    refuse(path, text);
  }
  std::array<std::uint32_t, Dimensions> extents{};
  for (std::size_t d = 0; d < Dimensions; ++d) extents[d] = word(d + 1);
  if (extents[0] == 0 || extents[0] > most_items)
    refuse(path, "damaged: claims to hold " + std::to_string(extents[0]) + " " + content);
  std::uint64_t expected = extents[0];
  for (std::size_t d = 1; d < Dimensions; ++d) {
    if (extents[d] != side)
      refuse(path, "holds pictures of " + std::to_string(extents[1]) + " x " +
                       std::to_string(extents[Dimensions - 1]) + " pixels, but the models take 28 x 28");
    expected *= extents[d];
  }
  const std::uint64_t payload = bytes.size() - header;
  if (payload < expected)
    refuse(path, "truncated: " + std::to_string(expected - payload) + " of " + std::to_string(expected) +
                     " bytes of " + content + " are missing");
  if (payload > expected)
    refuse(path, std::to_string(payload - expected) + " bytes too many after the " + content);
  return extents;
}

std::uint32_t checksum(std::uint32_t before, const Bytes& bytes, std::size_t header) {
  return static_cast<std::uint32_t>(crc32_z(before, bytes.data() + header, bytes.size() - header));
}

}  // namespace

Dataset load_images_labels(const std::string& directory, bool train, Inputs inputs) {
  const std::string prefix = train ? "train" : "t10k";
  const std::string images_path = find_file(directory, prefix + "-images-idx3-ubyte");
  const std::string labels_path = find_file(directory, prefix + "-labels-idx1-ubyte");

  Dataset dataset;
  {
    const Bytes bytes = read_contents(labels_path);
    const auto extents = read_header<1>(labels_path, bytes, labels_magic, "labels");
    dataset.count = extents[0];
    dataset.labels.reserve(extents[0]);
    for (std::size_t i = 8; i < bytes.size(); ++i) {
      if (bytes[i] > 9)
        refuse(labels_path,
               "label " + std::to_string(i - 8) + " is " + std::to_string(bytes[i]) + ", outside of 0 to 9");
      dataset.labels.push_back(bytes[i]);
    }
    dataset.checksum = checksum(0, bytes, 8);
  }
  const Bytes bytes = read_contents(images_path);
  const auto extents = read_header<3>(images_path, bytes, images_magic, "images");
  if (extents[0] != dataset.count)
    refuse(images_path, "holds " + std::to_string(extents[0]) + " images, but " + labels_path + " holds " +
                            std::to_string(dataset.count) + " labels");
  dataset.rows = extents[1];
  dataset.columns = extents[2];
  dataset.checksum = checksum(dataset.checksum, bytes, 16);

  std::array<float, 256> value{};
  for (std::size_t pixel = 0; pixel < value.size(); ++pixel) {
    const float unit = static_cast<float>(pixel) / 255.0F;
    value[pixel] = inputs == Inputs::unit ? unit : (unit - 0.2860F) / 0.3530F;
  }
  dataset.images.resize(bytes.size() - 16);
  for (std::size_t i = 0; i < dataset.images.size(); ++i) dataset.images[i] = value[bytes[i + 16]];
  return dataset;
}

}  // namespace train

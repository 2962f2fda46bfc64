// SPDX-License-Identifier: Apache-2.0

// A libFuzzer target: checkpoints, manifests and IDX files that may hold anything. Bytes choose a kind of file, change a good one
// by the words of its format, and mend its digests or don't. What isn't refused in the reader's own words must be whole: as long as
// it says, the same however it is read, good for going on from. Of the newest of two checkpoints that is damaged, the older one must
// be left. TERSE_FUZZ_KIND=checkpoints, manifests or idx keeps to one kind. tests/fuzz/run builds and runs it.

#include <stdlib.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <system_error>
#include <vector>

#include "../../tools/train/idx.hpp"
#include "checkpoint/sealed.hpp"
#include "fuzz/input.hpp"
#include "terse/checkpoint/elastic.hpp"
#include "terse/checkpoint/folder.hpp"
#include "terse/transport/thread.hpp"

namespace {

namespace fs = std::filesystem;
namespace checkpoint = terse::checkpoint;
using terse::index_t;
using terse::test::digest;
using terse::test::sealed;

void expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

/// A folder of its own, until the program ends.
struct Scratch {
  fs::path path;
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "terse-fuzz-XXXXXX").string();
    expect(::mkdtemp(pattern.data()) != nullptr, "no folder for files");
    path = pattern;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  static const fs::path& folder() {
    static const Scratch scratch;
    return scratch.path;
  }
};

fs::path store(const fs::path& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  expect(out.good(), "a file can't be written");
  return file;
}

/// Changes bytes, takes some away, and puts words in, also in the place of others.
std::string edited(std::string text, Input& input, const std::vector<std::string>& words) {
  const auto of_word = [&](std::size_t at) {
    const auto letter = static_cast<unsigned char>(text[at]);
    return std::isalnum(letter) != 0 || letter == '_' || letter == '-' || letter == '.';
  };
  while (input.size >= 3) {
    const std::size_t at = input.word() % (text.size() + 1);
    const std::uint8_t what = input.byte();
    const std::string& word = words[what / 4 % words.size()];
    if (what % 4 == 0 && at < text.size()) {
      text[at] = static_cast<char>(input.byte());
    } else if (what % 4 == 1) {
      text.erase(at, what / 4U);
    } else if (what % 4 == 2) {
      text.insert(at, word);
    } else {
      std::size_t begin = at, end = at;
      while (begin > 0 && of_word(begin - 1)) --begin;
      while (end < text.size() && of_word(end)) ++end;
      text.replace(begin, end - begin, word);
    }
  }
  return text;
}

const std::vector<std::string>& json_words() {
  static const std::vector<std::string> words = {
      "0",
      "1",
      "2",
      "3",
      "4",
      "5",
      "6",
      "7",
      "8",
      "24",
      "48",
      "-1",
      "4294967296",
      "9223372036854775807",
      "9223372036854775808",
      "18446744073709551615",
      "18446744073709551616",
      "1e300",
      "0.5",
      "null",
      "true",
      "[",
      "]",
      "{",
      "}",
      ",",
      ":",
      "\"",
      "\\u0000",
      "\\ud800",
      "F32",
      "F64",
      "BF16",
      "F16",
      "I64",
      "U64",
      "U16",
      "U8",
      "state.m",
      "state.codes",
      "state.steps",
      "parameters.w",
      "offset.m",
      "offset.codes",
      "\"rank\":",
      "\"shape\":[],",
      "\"name\":\"..\",",
      "/",
      "\"digest_header\":\"",
      "__metadata__",
      "$",
      "{\"name\":\"other\",\"rank\":0,\"bytes\":5,\"digest\":\"\"},"};
  return words;
}

/// What `work` refuses a file with, or nothing.
template <class Work>
std::string refusal(Work work) {
  try {
    work();
  } catch (const terse::checkpoint_error& fault) {
    expect(fault.what()[0] != '\0', "a refusal without words");
    return fault.what();
  }
  return {};
}

std::string checkpoint_header(int rank) {
  return R"({"__metadata__":{"offset.m":")" + std::to_string(6 * rank) + R"(","rank":")" +
         std::to_string(rank) +
         R"(","step":"7","world":"2",$},"parameters.w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
         R"("state.m":{"dtype":"F32","shape":[6],"data_offsets":[24,48]},)"
         R"("state.codes":{"dtype":"U8","shape":[8],"data_offsets":[48,56]},)"
         R"("state.steps":{"dtype":"U64","shape":[],"data_offsets":[56,64]}})";
}
std::string checkpoint_data() {
  std::string data(56, 1);
  return data + '\7' + std::string(7, '\0');
}

/// Two ranks' files, for another number of them.
void load_elastic(const fs::path& file, Input& input) {
  const fs::path other = Scratch::folder() / "rank-1";
  static const fs::path once = store(other, sealed(checkpoint_header(1), checkpoint_data()));
  const checkpoint::detail::AllFiles all({file, other}, {{{"state.m", {0, 12}}, {"state.codes", {0, 8}}}}, 0,
                                         {}, {});
  static_cast<void>(refusal([&] { all.require_same_extents(); }));
  const index_t from = input.byte() % 16, count = input.byte() % 16;
  const std::vector<checkpoint::detail::Wanted> wanted = {{"parameters.w", "F32", {2, 3}, 0},
                                                          {"state.m", "F32", {count}, from},
                                                          {"state.codes", "U8", {count}, from},
                                                          {"state.steps", "U64", {}, 0}};
  for (const checkpoint::detail::Wanted& one : wanted)
    static_cast<void>(refusal([&] {
      all.check(one);
      index_t bytes = one.dtype == "F32" ? 4 : one.dtype == "U64" ? 8 : 1, done = 0;
      for (const index_t extent : one.shape) bytes *= extent;
      std::vector<std::byte> place(static_cast<std::size_t>(bytes));
      all.read(one, [&](std::size_t at, std::span<const std::byte> part) {
        expect(at + part.size() <= place.size(), "more than was wanted");
        std::copy(part.begin(), part.end(), place.begin() + static_cast<std::ptrdiff_t>(at));
        done += static_cast<index_t>(part.size());
      });
      expect(done == bytes, "less than was wanted");
    }));
}

void fuzz_checkpoint(Input input) {
  const std::uint8_t mode = input.byte();
  const std::uint8_t more = input.byte();
  Input of_elastic{input.data, input.size};
  std::string bytes;
  if (mode % 8 == 0) {
    bytes = input.rest();
  } else {
    std::string data = checkpoint_data();
    if (mode % 8 == 1) data.resize(more);
    bytes = sealed(mode % 8 == 2 ? checkpoint_header(0) : edited(checkpoint_header(0), input, json_words()),
                   data);
    if (mode % 8 == 2) {
      const std::string whole = bytes;
      bytes = edited(bytes, input, {"0", std::string(1, '\0'), "\"", "digest"});
      const fs::path damaged = store(Scratch::folder() / "damaged", bytes);
      expect((bytes == whole) == refusal([&] { checkpoint::File::read(damaged); }).empty(),
             "a damaged file is taken for a good one, or the other way round");
    }
  }
  const fs::path file = store(Scratch::folder() / "rank-0", bytes);
  const std::string refused = refusal([&] { checkpoint::File::read(file); });
  expect(refused == refusal([&] { checkpoint::File::map(file); }), "mapped files are judged otherwise");
  const std::string foreign = refusal([&] { checkpoint::File::read_foreign(file); });
  expect(foreign == refusal([&] { checkpoint::File::map_foreign(file); }),
         "mapped files are judged otherwise");
  expect(!refused.empty() || foreign.empty(), "a good file is no file of others");
  if (!refused.empty()) return;

  const checkpoint::File read = checkpoint::File::read(file), mapped = checkpoint::File::map(file);
  std::size_t total = 0;
  std::string contents;
  for (const checkpoint::Tensor& tensor : read.tensors()) {
    const auto one = read.tensor(tensor.name, tensor.dtype, tensor.shape),
               other = mapped.tensor(tensor.name, tensor.dtype, tensor.shape);
    expect(std::equal(one.begin(), one.end(), other.begin(), other.end()),
           "mapped files hold something else");
    total += tensor.bytes;
    contents.append(reinterpret_cast<const char*>(one.data()), one.size());
  }
  expect(total <= bytes.size() && bytes.substr(bytes.size() - total) == contents,
         "not all of the file is read");
  const std::string again = checkpoint::detail::compose(file, read.tensors(), read.metadata());
  store(Scratch::folder() / "again", terse::test::length_bytes(again.size()) + again + contents);
  const checkpoint::File second = checkpoint::File::read(Scratch::folder() / "again");
  expect(second.tensors().size() == read.tensors().size(), "written again, it is another one");
  for (const checkpoint::Tensor& tensor : read.tensors()) {
    const auto one = read.tensor(tensor.name, tensor.dtype, tensor.shape),
               other = second.tensor(tensor.name, tensor.dtype, tensor.shape);
    expect(std::equal(one.begin(), one.end(), other.begin(), other.end()),
           "written again, it holds something else");
  }
  static_cast<void>(refusal([&] { load_elastic(file, of_elastic); }));
}

/// With its digest made anew, as it would stand in the file; as it is where it is no JSON.
std::string resealed(const std::string& text) {
  checkpoint::detail::Json json = checkpoint::detail::Json::parse(text, nullptr, false);
  if (!json.is_object()) return text;
  json.erase("digest");
  json["digest"] = digest(json.dump());
  return json.dump(2) + "\n";
}

/// A checkpoint of one rank, whose manifest is returned.
std::string save(const fs::path& folder, int step) {
  fs::create_directories(folder);
  const std::string rank_0 = sealed(checkpoint_header(0), checkpoint_data());
  store(folder / checkpoint::rank_file(0, 1), rank_0);
  store(folder / "position", std::to_string(step));
  const std::string text =
      checkpoint::Manifest(folder, static_cast<std::uint64_t>(step), 1,
                           {checkpoint::detail::part_of(folder, checkpoint::rank_file(0, 1), 0, true),
                            checkpoint::detail::part_of(folder, "position", 0, false)})
          .text();
  store(folder / "manifest.json", text);
  return text;
}

void fuzz_manifest(Input input) {
  const fs::path root = Scratch::folder() / "state", newest = root / "step-00000008";
  static const std::string older = save(root / "step-00000004", 4), good = save(newest, 8);
  const std::uint8_t mode = input.byte();
  std::string text = mode % 4 == 0 ? input.rest() : edited(good, input, json_words());
  if (mode % 4 > 1) text = resealed(text);
  store(newest / "manifest.json", text);

  bool whole =
      refusal([&] {
        const checkpoint::Manifest manifest = checkpoint::Manifest::read(newest);
        expect(manifest.text() == text, "a manifest says something else");
        expect(manifest.world() > 0, "a manifest of no ranks");
        for (const checkpoint::Part& part : manifest.parts()) {
          expect(part.rank >= 0 && part.rank < manifest.world(), "a file of a rank that there is not");
          expect(manifest.file(part.name).parent_path() == newest, "a file from somewhere else");
          const bool there = refusal([&] { manifest.verify(part); }).empty();
          const std::string unread = refusal([&] { static_cast<void>(manifest.contents(part.name)); });
          expect(there || part.has_header || !unread.empty(), "a file that isn't what was saved is read");
        }
      }).empty();
  expect(mode % 4 > 1 || whole == (text == good),
         "a damaged manifest is taken for a good one, or the other way round");

  terse::ThreadGroup(1, std::chrono::seconds(20)).run([&](terse::Threads& transport) {
    checkpoint::Folder folder(root, transport, checkpoint::Use::read);
    const auto elastic = mode >> 2 & 1 ? checkpoint::Elastic::yes : checkpoint::Elastic::no;
    try {
      const auto loaded = folder.load(
          [](const checkpoint::Manifest& manifest) {
            expect(manifest.contents("position") ==
                       (manifest.folder().filename() == "step-00000008" ? "8" : "4"),
                   "loaded, but not what was saved");
          },
          elastic);
      expect(loaded.has_value(), "no checkpoint is found");
      expect(loaded->skipped.size() == (loaded->manifest.folder() == newest ? 0U : 1U),
             "skipped without a word");
      expect(whole || loaded->manifest.folder() != newest, "a damaged checkpoint is loaded");
    } catch (const terse::foreign_checkpoint_error&) {
      expect(whole && elastic == checkpoint::Elastic::no, "damage is taken for another run's checkpoint");
    }
  });
}

std::string zipped(const std::string& bytes) {
  z_stream stream{};
  expect(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK, "no zlib");
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  expect(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib fails");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

void fuzz_idx(Input input) {
  const std::uint8_t mode = input.byte();
  const auto big_endian = [](std::uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 255);
    return bytes;
  };
  static const std::vector<std::string> words = {
      big_endian(0),         big_endian(1),   big_endian(2),       big_endian(3),
      big_endian(28),        big_endian(29),  big_endian(0x801),   big_endian(0x803),
      big_endian(1'000'000), big_endian(~0U), std::string(784, 9), "\x1f\x8b\x08"};
  std::string labels = big_endian(0x801) + big_endian(2) + std::string{3, 9},
              images = big_endian(0x803) + big_endian(2) + big_endian(28) + big_endian(28);
  for (std::size_t i = 0; i < 2 * 784; ++i) images += static_cast<char>(i * 7 % 256);
  std::string& one = mode & 1 ? images : labels;
  const std::string whole = one;
  if (mode >> 1 & 1) one = zipped(one);
  one = mode % 16 >= 12 ? input.rest() : edited(one, input, words);
  if (mode >> 4 & 1) one = zipped(one);

  store(Scratch::folder() / "train-images-idx3-ubyte", images);
  store(Scratch::folder() / "train-labels-idx1-ubyte", labels);
  try {
    const train::Dataset data = train::load_images_labels(Scratch::folder(), true);
    const auto count = static_cast<std::size_t>(data.count);
    expect(count > 0 && data.rows == 28 && data.columns == 28, "impossible sizes");
    expect(data.labels.size() == count && data.images.size() == count * 784, "not as many as it says");
    for (const std::int64_t label : data.labels) expect(label >= 0 && label <= 9, "an impossible label");
    for (const float pixel : data.images) expect(std::abs(pixel) < 3, "an impossible pixel");
  } catch (const train::input_error& fault) {
    expect(one != whole, "a good file is refused");
    expect(std::strchr(fault.what(), '\n') == nullptr, "a refusal of two lines");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const char* const kind = std::getenv("TERSE_FUZZ_KIND");
  Input input{data, size};
  const std::uint8_t chosen = input.byte();
  const auto is = [&](const char* name, int number) {
    return kind == nullptr ? chosen % 3 == number : std::strcmp(kind, name) == 0;
  };
  if (is("checkpoints", 0)) fuzz_checkpoint(input);
  if (is("manifests", 1)) fuzz_manifest(input);
  if (is("idx", 2)) fuzz_idx(input);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "terse/checkpoint/safetensors.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/scratch.hpp"
#include "checkpoint/sealed.hpp"

namespace {

namespace checkpoint = terse::checkpoint;
namespace fs = std::filesystem;

using checkpoint::File;
using checkpoint::Tensor;
using terse::test::digest;
using terse::test::length_bytes;
using terse::test::Scratch;
using terse::test::sealed;

std::string load(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

void store(const fs::path& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << bytes;
  out.close();
  REQUIRE(out.good());
}

template <class T>
Tensor view(const std::string& name, const std::string& dtype, const std::vector<terse::index_t>& shape,
            const std::vector<T>& values) {
  return {name, dtype, shape, reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

/// The sentence that `call` fails with, or "" if it doesn't fail.
template <class Call>
std::string failure(const Call& call) {
  try {
    call();
  } catch (const terse::checkpoint_error& caught) {
    return caught.what();
  }
  return "";
}

/// Either way of reading a file ends alike.
std::string read_failure(const fs::path& file) {
  const std::string sentence = failure([&] { File::read(file); });
  CHECK(failure([&] { File::map(file); }) == sentence);
  return sentence;
}
std::string foreign_failure(const fs::path& file) {
  const std::string sentence = failure([&] { File::read_foreign(file); });
  CHECK(failure([&] { File::map_foreign(file); }) == sentence);
  return sentence;
}

bool mentions(const std::string& text, const std::string& part) {
  INFO("the sentence: " << text);
  INFO("should mention: " << part);
  const bool found = text.find(part) != text.npos;
  CHECK(found);
  return found;
}

const std::vector<float> floats{1, -2, 3.5F, 4, 5, 6};
const std::vector<std::uint64_t> words{7, std::numeric_limits<std::uint64_t>::max()};
const std::vector<std::int64_t> scalar{-9};
const std::vector<double> doubles{0.1};
const std::vector<std::uint8_t> bytes{1, 2, 3};

std::vector<Tensor> small() { return {view("b", "U8", {3}, bytes), view("f", "F32", {2, 3}, floats)}; }

}  // namespace

TEST_CASE("what was written is read") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "new" / "directories" / "all.safetensors";
  const std::string odd = "a \"quoted\"\\ n\xc3\xa4me\n\xf0\x9f\x99\x82,\"digest_header\":\"";
  const std::vector<float> none;
  const std::vector<std::uint8_t> large(3'000'001, 5);
  const checkpoint::Metadata metadata{
      {"", "empty"}, {odd, odd}, {"a\"digest_header", "x"}, {"digest_header", "old"}, {"zero", {"\0x", 2}}};
  checkpoint::write(file,
                    {view("bytes", "U8", {3}, bytes), view("none", "F32", {0}, none),
                     view("floats", "F32", {2, 3}, floats), view("scalar", "I64", {}, scalar),
                     view("large", "U8", {3'000'001}, large), view(odd, "U64", {2}, words),
                     view("doubles", "F64", {1, 1, 1}, doubles), view("void", "F64", {7, 0}, none)},
                    metadata);

  const File read = File::read(file);
  CHECK(read.tensors().size() == 8);
  for (const Tensor& tensor : read.tensors()) CHECK(reinterpret_cast<std::uintptr_t>(tensor.data) % 64 == 0);
  const File mapped = File::map(file);
  // What is mapped stays, whatever takes its place.
  checkpoint::write(file, small(), {});
  const auto same = [&](const auto& name, const auto& dtype, const auto& shape, const auto& values) {
    INFO(std::string(name));
    for (const File* one : {&read, &mapped}) {
      const auto found = one->tensor(name, dtype, shape);
      REQUIRE(found.size() == values.size() * sizeof(values[0]));
      CHECK(one->contains(name));
      CHECK(one->shape(name) == shape);
      CHECK((values.empty() || std::memcmp(found.data(), values.data(), found.size()) == 0));
    }
  };
  using Shape = std::vector<terse::index_t>;
  same("bytes", "U8", Shape{3}, bytes);
  same("none", "F32", Shape{0}, none);
  same("floats", "F32", Shape{2, 3}, floats);
  same("scalar", "I64", Shape{}, scalar);
  same("large", "U8", Shape{3'000'001}, large);
  same(odd, "U64", Shape{2}, words);
  same("doubles", "F64", Shape{1, 1, 1}, doubles);
  same("void", "F64", Shape{7, 0}, none);

  CHECK(read.metadata().size() == metadata.size() + 1);
  for (const auto& [key, value] : metadata)
    if (key != "digest_header") CHECK(read.metadata(key) == value);
  mentions(failure([&] { read.metadata("nothing"); }), "nothing");
}

TEST_CASE("the bytes are those of the format") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "a";
  checkpoint::write(file, small(), {});
  const std::string whole = load(file);
  std::uint64_t length = 0;
  std::memcpy(&length, whole.data(), 8);
  REQUIRE(length + 8 + 27 == whole.size());
  CHECK(length % 8 == 0);
  CHECK(whole[8] == '{');
  const std::string data = whole.substr(8 + length);
  CHECK(data.substr(0, 3) == std::string("\1\2\3"));
  CHECK(std::memcmp(data.data() + 3, floats.data(), 24) == 0);

  auto header = nlohmann::json::parse(whole.substr(8, length));
  CHECK(header["f"] == nlohmann::json::parse(R"({"dtype":"F32","shape":[2,3],"data_offsets":[3,27]})"));
  CHECK(header["__metadata__"]["digest_data"] == digest(data));
  const std::string sum = header["__metadata__"]["digest_header"];
  std::string zeroed = whole.substr(0, 8 + length);
  zeroed.replace(zeroed.find(sum), 32, std::string(32, '0'));
  CHECK(sum == digest(zeroed));
  CHECK(scratch.names().size() == 1);
}

TEST_CASE("no tensors at all is a checkpoint too") {
  const Scratch scratch;
  checkpoint::write(scratch.path() / "a", {}, {{"step", "12"}});
  const File read = File::read(scratch.path() / "a");
  CHECK(read.tensors().empty());
  CHECK(read.metadata("step") == "12");
}

TEST_CASE("a file cut short anywhere is refused, and one that goes on too") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "a";
  checkpoint::write(file, small(), {{"step", "12"}});
  const std::string whole = load(file);
  for (std::size_t kept = 0; kept < whole.size(); ++kept) {
    store(file, whole.substr(0, kept));
    INFO("bytes kept: " << kept << " of " << whole.size());
    CHECK(read_failure(file) != "");
  }
  store(file, whole + '\0');
  mentions(read_failure(file), "holds 28 bytes of data, but its header declares 27");
  store(file, whole);
  CHECK(read_failure(file) == "");
}

TEST_CASE("any flipped bit is noticed") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "a";
  checkpoint::write(file, small(), {{"padded", "abcd"}});
  std::string whole = load(file);
  // Padding is where a parser would not notice.
  REQUIRE(whole[whole.size() - 28] == ' ');
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    const char kept = whole[bit / 8];
    whole[bit / 8] = static_cast<char>(kept ^ 1 << bit % 8);
    store(file, whole);
    INFO("bit " << bit);
    CHECK(read_failure(file) != "");
    whole[bit / 8] = kept;
  }
  store(file, whole);
  CHECK(read_failure(file) == "");
}

TEST_CASE("a tensor that isn't as expected is refused by name") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "moments";
  checkpoint::write(file, small(), {});
  const File read = File::read(file);
  CHECK_FALSE(read.contains("g"));
  const std::string missing = failure([&] { read.tensor("g", "F32", {2, 3}); });
  mentions(missing, file.string());
  mentions(missing, "no tensor \"g\"");
  mentions(failure([&] {
             read.tensor("f", "U64", {2, 3});
           }),
           "tensor \"f\": expected U64 [2, 3], found F32 [2, 3]");
  mentions(failure([&] { read.tensor("f", "F32", {6}); }),
           "tensor \"f\": expected F32 [6], found F32 [2, 3]");
}

TEST_CASE("forged headers are refused, whatever their digests say") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "a";
  const std::string metadata = R"("__metadata__":{"a":"b",$})";
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return R"({"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[)" + offsets + "]}";
  };
  const auto with = [&](const std::string& members) { return "{" + members + "," + metadata + "}"; };
  const auto one = [&](const std::string& value) { return with("\"t\":" + value); };

  store(file, sealed(one(entry("4", "0,4")) + "   ", "data"));
  CHECK(read_failure(file) == "");

  struct Case {
    std::string header, sentence;
  };
  const std::vector<Case> cases{
      {"[" + with("\"t\":1") + "]", "not a JSON object"},
      {"\xef\xbb\xbf" + one(entry("4", "0,4")), "not a JSON object"},
      {one(entry("4", "0,4")) + std::string(1, '\0'), "not a JSON object"},
      {one(entry("4", "0,4")) + "}", "not valid JSON"},
      {one(entry("4", "0,4")) + "//", "not valid JSON"},
      {with("\"\xff\":" + entry("4", "0,4")), "not valid JSON"},
      {one(entry("[[1]]", "0,4")), "nested too deeply"},
      {one(std::string(1'000'000, '[')), "nested too deeply"},
      {one("4"), "malformed entry"},
      {one("[]"), "malformed entry"},
      {one("null"), "malformed entry"},
      {one(R"({"dtype":"U8","shape":[4]})"), "malformed entry"},
      {one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4],"more":1})"), "malformed entry"},
      {one(R"({"dtype":"U8","shape":[4],"offsets":[0,4]})"), "malformed entry"},
      {one(R"({"dtype":8,"shape":[4],"data_offsets":[0,4]})"), "malformed entry"},
      {one(R"({"dtype":"U8","shape":4,"data_offsets":[0,4]})"), "malformed entry"},
      {one(R"({"dtype":"U8","shape":[4],"data_offsets":4})"), "malformed entry"},
      {one(R"({"dtype":"U8","shape":[4],"data_offsets":{"a":0,"b":4}})"), "malformed entry"},
      {one(entry("4", "0")), "malformed entry"},
      {one(entry("4", "0,4,4")), "malformed entry"},
      {one(entry("4", "0,4.0")), "malformed entry"},
      {one(entry("4", "-4,0")), "malformed entry"},
      {one(entry("4", "0,\"4\"")), "malformed entry"},
      {one(entry("4", "0,18446744073709551616")), "malformed entry"},
      {one(entry("-4", "0,4")), "malformed entry"},
      {one(entry("4.0", "0,4")), "malformed entry"},
      {one(entry("true", "0,4")), "malformed entry"},
      {one(entry("9223372036854775808", "0,4")), "malformed entry"},
      {one(R"({"dtype":"F8","shape":[4],"data_offsets":[0,4]})"), "unknown dtype \"F8\""},
      {one(entry("4294967296,4294967296", "0,0")), "impossible shape"},
      {one(R"({"dtype":"U64","shape":[2305843009213693952],"data_offsets":[0,0]})"), "impossible shape"},
      {one(entry("4", "4,0")), "do not fit U8 [4]"},
      {one(entry("5", "0,4")), "do not fit U8 [5]"},
      {one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,4]})"), "do not fit F32 [4]"},
      {one(entry("4", "18446744073709551614,2")), "do not fit U8 [4]"},
      {one(entry("9223372036854775807", "0,9223372036854775807")), "header declares 9223372036854775807"},
      {one(entry("5", "0,5")), "header declares 5"},
      {one(entry("3", "0,3")), "header declares 3"},
      {one(entry("3", "1,4")), "starts at byte 1"},
      {one(entry("4", "18446744073709551611,18446744073709551615")), "starts at byte 18446744073709551611"},
      {with("\"t\":" + entry("2", "0,2") + ",\"u\":" + entry("3", "1,4")), "starts at byte 1"},
      {with("\"t\":" + entry("1", "0,1") + ",\"u\":" + entry("2", "2,4")), "starts at byte 2"},
      {with("\"t\":" + entry("4", "0,4") + ",\"u\":" + entry("4", "0,4")), "starts at byte 0"},
      {with("\"t\":" + entry("4", "0,4") + ",\"u\":" + entry("0", "1,1")), "starts at byte 1"},
      {with("\"t\":" + entry("4", "0,4") + ",\"\\u0074\":" + entry("4", "0,4")), "\"t\" twice"},
      {one(R"({"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]})"), "\"shape\" twice"},
      {"{\"t\":" + entry("4", "0,4") + R"(,"__metadata__":{"a":"b","a":"b",$}})", "\"a\" twice"},
      {"{" + metadata + R"(,"__metadata__":{}})", "\"__metadata__\" twice"},
      {"{\"t\":" + entry("4", "0,4") + R"(,"__metadata__":{"a":1,$}})", "malformed at \"a\""},
      {"{\"t\":" + entry("4", "0,4") + R"(,"__metadata__":["b",$]})", "not valid JSON"},
      {"{\"t\":" + entry("4", "0,4") + R"(,"__metadata__":[],"u":{"a":"b",$}})", "metadata is malformed"},
      {"{\"t\":{\"a\":1,$}}", "malformed entry"},
  };
  for (const Case& forged : cases) {
    INFO(forged.header.substr(0, 200));
    store(file, sealed(forged.header, "data"));
    mentions(read_failure(file), forged.sentence);
    // Of other programs' files, too, but for an unknown dtype, which is no reason to refuse a whole file.
    if (forged.sentence != "unknown dtype \"F8\"") mentions(foreign_failure(file), forged.sentence);
  }
}

TEST_CASE("files of other programs are read, of every dtype, without digests") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "a";
  struct Case {
    std::string dtype;
    std::size_t bits;
  };
  const std::vector<Case> cases{
      {"BOOL", 8}, {"U8", 8},          {"I8", 8},          {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
      {"I16", 16}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32}, {"U32", 32},        {"F32", 32},        {"I64", 64},    {"U64", 64},    {"F64", 64},
      {"C64", 64}, {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6}};
  // Twelve elements each, after a byte that leaves no tensor aligned; the first in the header comes last in the file.
  nlohmann::json header;
  std::string data = "x";
  for (const Case& one : cases) {
    const std::size_t begin = data.size();
    for (std::size_t b = 0; b < 12 * one.bits / 8; ++b) data += static_cast<char>(data.size() * 7);
    header["of " + one.dtype] = {
        {"dtype", one.dtype}, {"shape", {3, 4}}, {"data_offsets", {begin, data.size()}}};
  }
  header["first"] = {{"dtype", "U8"}, {"shape", nlohmann::json::array()}, {"data_offsets", {0, 1}}};
  header["a new one"] = {
      {"dtype", "Q3"}, {"shape", {5, 5}}, {"data_offsets", {data.size(), data.size() + 3}}};
  data += "new";
  for (const bool with_metadata : {false, true}) {
    if (with_metadata) header["__metadata__"] = {{"format", "pt"}};
    const std::string text = header.dump();
    store(file, sealed(text, data));
    for (const File& read : {File::read_foreign(file), File::map_foreign(file)}) {
      CHECK(read.metadata().size() == (with_metadata ? 1 : 0));
      REQUIRE(read.tensors().size() == cases.size() + 2);
      for (const Case& one : cases) {
        INFO(one.dtype);
        const auto found = read.tensor("of " + one.dtype, one.dtype, {3, 4});
        const auto begin = header["of " + one.dtype]["data_offsets"][0].get<std::size_t>();
        REQUIRE(found.size() == 12 * one.bits / 8);
        CHECK(std::memcmp(found.data(), data.data() + begin, found.size()) == 0);
      }
      // Unknown dtypes are listed, with the bytes of their offsets.
      const Tensor& unknown = read.tensors().back();
      CHECK(unknown.name == "a new one");
      CHECK(std::string(reinterpret_cast<const char*>(unknown.data), unknown.bytes) == "new");
      CHECK(read.shape("a new one") == std::vector<terse::index_t>{5, 5});
      const std::string refused = failure([&] { read.tensor("a new one", "Q3", {5, 5}); });
      mentions(refused, file.string());
      mentions(refused, "tensor \"a new one\" has the unknown dtype \"Q3\"");
      mentions(refused, "tensors() has its bytes");
      mentions(failure([&] { read.tensor("of I8", "U8", {3, 4}); }), "expected U8 [3, 4], found I8 [3, 4]");
      mentions(failure([&] { read.tensor("nothing", "U8", {}); }),
               "no tensor \"nothing\", but 24 others, such as \"first\"");
    }
    mentions(read_failure(file),
             "File::read_foreign and map_foreign read safetensors files of other programs");
  }
  store(file, sealed("{}", ""));
  CHECK(File::read_foreign(file).tensors().empty());
  mentions(failure([&] { File::read_foreign(file).shape("t"); }), "has no tensor \"t\", but 0 others");
}

TEST_CASE("sizes in parts of a byte, and of unknown dtypes, are checked") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "a";
  const auto refused = [&](const std::string& dtype, const std::string& shape, const std::string& offsets,
                           const std::string& sentence) {
    store(file, sealed(R"({"t":{"dtype":")" + dtype + R"(","shape":[)" + shape + R"(],"data_offsets":[)" +
                           offsets + "]}}",
                       "data"));
    INFO(dtype << " [" << shape << "] at " << offsets);
    if (sentence.empty())
      CHECK(foreign_failure(file) == "");
    else
      mentions(foreign_failure(file), sentence);
  };
  refused("F4", "2,4", "0,4", "");
  refused("F4", "7", "0,4", "impossible shape F4 [7]");
  refused("F4", "", "0,4", "impossible shape F4 []");
  refused("F6_E2M3", "5", "0,4", "impossible shape F6_E2M3 [5]");
  refused("F6_E3M2", "4", "0,4", "do not fit F6_E3M2 [4]");
  refused("F64", "2305843009213693952", "0,0", "impossible shape");
  refused("C64", "4294967296,4294967296", "0,0", "impossible shape");
  refused("F4", "9223372036854775800,3", "0,4", "impossible shape");
  refused("Q3", "9223372036854775807,9223372036854775807", "0,4", "");
  refused("Q3", "1", "4,0", "do not fit \"Q3\" [1]");
  // What a file says is shown without its control characters.
  refused("\\u001b[31mX", "1", "4,0", "do not fit \"\\u001b[31mX\" [1]");
  refused("Q3", "1", "0,5", "header declares 5");
  refused("Q3", "1", "0,18446744073709551615", "header declares 18446744073709551615");
  refused("Q3", "1", "1,4", "starts at byte 1");
  refused("Q3", "-1", "0,4", "malformed entry");
}

TEST_CASE("terse's digests are verified by whoever reads a file") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "a";
  checkpoint::write(file, small(), {{"padded", "abcd"}});
  CHECK(foreign_failure(file) == "");
  std::string whole = load(file);
  const std::size_t key = whole.find("digest_header");
  REQUIRE(key != whole.npos);
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    const char kept = whole[bit / 8];
    whole[bit / 8] = static_cast<char>(kept ^ 1 << bit % 8);
    store(file, whole);
    whole[bit / 8] = kept;
    INFO("bit " << bit);
    // Without its key there is no digest of the header, but still one of the data.
    if (bit / 8 < key - 2 || bit / 8 >= key + 16) {
      CHECK(foreign_failure(file) != "");
    } else if (foreign_failure(file).empty()) {
      CHECK(File::read_foreign(file).metadata("padded") == "abcd");
    }
  }
}

TEST_CASE("a header of many tensors is read in linear time") {
  const Scratch scratch;
  const auto seconds = [&](std::size_t count) {
    std::vector<Tensor> tensors;
    for (std::size_t k = 0; k < count; ++k) tensors.push_back(view(std::to_string(k), "U8", {3}, bytes));
    checkpoint::write(scratch.path() / "a", tensors, {});
    double best = 1e9;
    for (int round = 0; round < 3; ++round) {
      const std::clock_t begin = std::clock();  // the processor's, which other programs don't take
      CHECK(File::read(scratch.path() / "a").tensors().size() == count);
      best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    return best;
  };
  // Eight times as many; what is quadratic takes 64 times as long.
  const double few = seconds(1'000);
  CHECK(seconds(8'000) < 25 * few);
}

TEST_CASE("files that are something else are refused") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "a";
  mentions(read_failure(file), "cannot open");
  mentions(foreign_failure(file), "cannot open");
  mentions(read_failure(scratch.path()), "not a regular file");
  REQUIRE(::mkfifo((scratch.path() / "pipe").c_str(), 0600) == 0);
  mentions(read_failure(scratch.path() / "pipe"), "not a regular file");
  store(file, "1234567");
  mentions(read_failure(file), "too short");
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{1} << 63,
                                     std::numeric_limits<std::uint64_t>::max() - 7}) {
    store(file, length_bytes(length) + "{}");
    mentions(read_failure(file), "has a header of " + std::to_string(length));
    mentions(foreign_failure(file), "has a header of " + std::to_string(length));
  }
  store(file, length_bytes(100'000'001));
  fs::resize_file(file, 200'000'000);
  mentions(read_failure(file), "has a header of 100000001");
  mentions(foreign_failure(file), "has a header of 100000001");
  store(file, length_bytes(2) + "{}");
  mentions(read_failure(file), "no digest");
  const std::string cut = "{,\"digest_header\":\"0";
  store(file, length_bytes(cut.size()) + cut);
  mentions(read_failure(file), "no digest");
  const std::string sound = sealed(R"({"__metadata__":{"a":"b",$}})", "");
  store(file, sound);
  CHECK(read_failure(file) == "");
  store(file, sound.substr(0, 8) + std::string(sound).replace(0, 8, "").replace(18, 1, "c"));
  mentions(read_failure(file), "header does not match its digest");
  store(file,
        sealed(R"({"__metadata__":{"a":"b",$},"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  std::string damaged = load(file);
  damaged.back() = 'y';
  store(file, damaged);
  mentions(read_failure(file), "data does not match its digest");
}

TEST_CASE("tensors that make no sense are not written") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "a";
  checkpoint::write(file, small(), {});
  const std::string before = load(file);
  const auto refused = [&](const std::vector<Tensor>& tensors, const std::string& sentence) {
    mentions(failure([&] { checkpoint::write(file, tensors, {}); }), sentence);
  };
  refused({small()[0], small()[0]}, "\"b\" is a taken name");
  refused({view("__metadata__", "U8", {3}, bytes)}, "is a taken name");
  refused({view("t", "U9", {3}, bytes)}, "unknown dtype \"U9\"");
  refused({view("t", "U8", {4}, bytes)}, "3 bytes, which is not the size of U8 [4]");
  refused({view("t", "U8", {-3}, bytes)}, "impossible shape U8 [-3]");
  refused({{"t", "U8", {3}, nullptr, 3}}, "no data");
  refused({view("\xff", "U8", {3}, bytes)}, "not UTF-8");
  mentions(failure([&] { checkpoint::write(file, {}, {{"a", "\xc3"}}); }), "not UTF-8");
  CHECK(load(file) == before);
  CHECK(scratch.names().size() == 1);
}

TEST_CASE("a place that can't be written stays as it was") {
  const Scratch scratch;
  const fs::path obstacle = scratch.path() / "regular";
  store(obstacle, "keep me");
  for (const fs::path& file : {obstacle / "a", obstacle / "deep" / "a"}) {
    const std::string sentence = failure([&] { checkpoint::write(file, small(), {}); });
    mentions(sentence, file.string());
    mentions(sentence, "directory");
  }
  CHECK(load(obstacle) == "keep me");
  CHECK(scratch.names().size() == 1);

  const fs::path occupied = scratch.path() / "occupied";
  fs::create_directory(occupied);
  store(occupied / "inside", "keep me too");
  mentions(failure([&] { checkpoint::write(occupied, small(), {}); }), "cannot be replaced");
  CHECK(load(occupied / "inside") == "keep me too");
  CHECK(scratch.names().size() == 2);
}

TEST_CASE("a full disk leaves the old file") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "a";
  checkpoint::write(file, small(), {{"step", "1"}});
  const std::string before = load(file);

  // A limit on the size of files fails a write halfway, as a full disk does.
  const std::vector<float> large(100'000, 1.0F);
  rlimit kept{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &kept) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limited = kept;
  limited.rlim_cur = 10'000;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limited) == 0);
  const std::string sentence =
      failure([&] { checkpoint::write(file, {view("large", "F32", {100'000}, large)}, {}); });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &kept) == 0);
  std::signal(SIGXFSZ, handler);

  mentions(sentence, "cannot write");
  CHECK(load(file) == before);
  CHECK(scratch.names().size() == 1);
  checkpoint::write(file, {view("large", "F32", {100'000}, large)}, {{"step", "2"}});
  CHECK(File::read(file).metadata("step") == "2");
  CHECK(scratch.names().size() == 1);
}

TEST_CASE("a partial file that a crash left is not in the way") {
  const Scratch scratch;
  const fs::path file = scratch.path() / "a";
  const std::string stem = "a.partial" + std::to_string(::getpid()) + "-";
  for (int counter = 0; counter < 1000; ++counter)
    store(scratch.path() / (stem + std::to_string(counter)), "x");
  checkpoint::write(file, small(), {});
  CHECK(read_failure(file) == "");
  CHECK(scratch.names().size() == 1001);
}

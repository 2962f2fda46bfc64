// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../../tools/train/any_graph.hpp"
#include "../../tools/train/device.hpp"
#include "../../tools/train/idx.hpp"
#include "../../tools/train/label_skew.hpp"
#include "../../tools/train/options.hpp"
#include "../../tools/train/output.hpp"
#include "../../tools/train/report.hpp"
#include "../../tools/train/saved_run.hpp"
#include "../../tools/train/settings.hpp"
#include "../../tools/train/to_width.hpp"
#include "terse/checkpoint/folder.hpp"
#include "terse/graph/verify.hpp"
#include "terse/momentum_correction/combine.hpp"
#include "terse/momentum_correction/compressed_differences.hpp"
#include "terse/momentum_correction/displacement.hpp"
#include "terse/momentum_correction/doubly_averaged.hpp"
#include "terse/momentum_correction/exact_diffusion.hpp"
#include "terse/momentum_correction/mixed_gradient.hpp"
#include "terse/momentum_correction/quasi_global.hpp"
#include "terse/momentum_correction/tracking.hpp"
#include "terse/transport/thread.hpp"

// Nobody makes an optimizer here.
namespace train {
template <class Tag, class P>
std::unique_ptr<AnyOptimizer> make(const Order<P>&) {
  throw std::logic_error("no optimizer is made here");
}
}  // namespace train
#include "../../tools/train/method_table.hpp"

// The parts of tools/train that do without LibTorch: data and how it is dealt out, graphs, options and reports.

namespace {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("terse-train-parts-" + std::to_string(getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string path() const { return path_.string(); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  std::filesystem::path path_;
};

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_gzip(const std::string& path, const std::string& bytes) {
  const gzFile file = gzopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size()));
  REQUIRE(gzclose(file) == Z_OK);
}

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

constexpr std::uint32_t count = 5;
constexpr std::size_t payload = count * 28 * 28;

char pixel(std::size_t index) { return static_cast<char>(index * 7 % 256); }

std::string images_file() {
  std::string bytes = big_endian(0x803) + big_endian(count) + big_endian(28) + big_endian(28);
  for (std::size_t i = 0; i < payload; ++i) bytes += pixel(i);
  return bytes;
}

std::string labels_file() { return big_endian(0x801) + big_endian(count) + std::string{0, 9, 3, 3, 1}; }

const std::string images_name = "train-images-idx3-ubyte";
const std::string labels_name = "train-labels-idx1-ubyte";

// The message that loading ends with, which must be one line; empty where it succeeds.
std::string complaint(const TemporaryDirectory& directory) {
  try {
    train::load_images_labels(directory.path(), true);
  } catch (const train::input_error& fault) {
    const std::string line = fault.what();
    CHECK(line.find('\n') == std::string::npos);
    return line;
  }
  return "";
}

std::string complaint_with(const std::string& images, const std::string& labels) {
  const TemporaryDirectory directory;
  write(directory.file(images_name), images);
  write(directory.file(labels_name), labels);
  return complaint(directory);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<train::Run> two_runs() {
  train::Run adam;
  adam.optimizer = "adam";
  adam.transport = "threads";
  adam.ranks = 4;
  adam.topology = "scatter-gather";
  adam.seed = 18446744073709551615ULL;
  adam.steps = 3;
  adam.test_accuracy = 0.875;
  adam.train_loss = {2.5, 1.25, 0.5};
  adam.settings = {{"clip-norm", "none"}, {"period", "8"}, {"seed", "18446744073709551615"}};
  adam.communication_rounds = 37;
  adam.waiting_share = {0.25, 0.5, 0.75, 0.125};
  adam.bytes_sent_per_rank = 3000;
  adam.dense_bytes_per_step = 1000;
  adam.bytes_after_step = {1000, 2000, 3000};
  adam.parameters_hash = "00112233445566778899aabbccddeeff";
  adam.ranks_agree = true;
  adam.seconds = {1.5, 0.25, 0.125, 2};
  train::Run compressed = adam;
  compressed.optimizer = "one-bit-adam";
  compressed.warmup_steps = 1;
  compressed.bytes_sent_per_compressed_step = 32;
  compressed.bytes_sent_per_rank = 1064;
  compressed.bytes_after_step = {1000, 1032, 1064};
  compressed.ranks_agree = false;
  return {adam, compressed};
}

constexpr train::Graph all_graphs[]{train::Graph::ring,
                                    train::Graph::mesh,
                                    train::Graph::torus,
                                    train::Graph::star,
                                    train::Graph::complete,
                                    train::Graph::hypercube,
                                    train::Graph::exponential,
                                    train::Graph::symmetric_exponential,
                                    train::Graph::one_peer_exponential,
                                    train::Graph::one_peer_hypercube,
                                    train::Graph::random_matching};

bool is(const train::Method& kind, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), kind.name) != names.end();
}
std::vector<const train::Method*> list(std::initializer_list<const char*> names) {
  std::vector<const train::Method*> found;
  for (const char* const name : names) found.push_back(&train::method(name));
  return found;
}

// One run of each optimizer, over two topologies and from two steps on.
std::vector<train::Run> all_runs() {
  std::vector<train::Run> runs;
  for (const train::Method& kind : train::methods()) {
    train::Run run = two_runs()[1];
    run.optimizer = train::name(kind);
    run.topology = train::route_of({}, kind);
    if (train::keeps_own_models(kind)) {
      run.mean_single_accuracy = 0.75;
      run.consensus_distance = 0.0625;
    }
    run.warmup_steps = is(kind, {"one-bit-adam"}) ? 2 : is(kind, {"ef21-sgd"}) ? 1 : 0;
    if (is(kind, {"adam", "momentum-sgd", "lamb"}) || train::is_local(kind))
      run.bytes_sent_per_compressed_step = 0;
    runs.push_back(run);
  }
  return runs;
}

// The widest line.
std::size_t columns(const std::string& text) {
  std::size_t widest = 0;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    widest = std::max(widest, end - begin);
    begin = end + 1;
  }
  return widest;
}

train::Options parse(std::vector<const char*> arguments, train::Program program = train::Program::train) {
  arguments.insert(arguments.begin(), "train");
  return train::parse_options(static_cast<int>(arguments.size()), arguments.data(), stdout, program).value();
}

std::string refusal(std::vector<const char*> arguments) {
  try {
    parse(std::move(arguments));
  } catch (const train::input_error& fault) {
    const std::string line = fault.what();
    CHECK(line.find('\n') == std::string::npos);
    return line;
  }
  return "";
}

}  // namespace

TEST_CASE("help is broken behind words, and goes on below its last column") {
  CHECK(train::to_width("short\n\n  --seed INT   of all that is drawn\nend", 30) ==
        "short\n\n  --seed INT   of all that is\n               drawn\nend");
  // Without a column to speak of: two spaces further in than its beginning.
  CHECK(train::to_width("  train --optimizers adam --ranks 8", 20) ==
        "  train --optimizers\n  adam --ranks 8");
  CHECK(train::to_width("  a-name-that-is-longer-than-half   text of it", 30) ==
        "  a-name-that-is-longer-than-half\n    text of it");
  // A word is not broken.
  CHECK(train::to_width("abcdefghijkl mn", 5) == "abcdefghijkl\nmn");
  CHECK(train::to_width("          deep inside", 8) == "    deep\n    inside");
  CHECK(train::to_width("", 5).empty());
}

TEST_CASE("IDX files are read alike, plain and gzip") {
  for (const bool gzip : {false, true}) {
    CAPTURE(gzip);
    const TemporaryDirectory directory;
    if (gzip) {
      write_gzip(directory.file(images_name + ".gz"), images_file());
      write_gzip(directory.file(labels_name + ".gz"), labels_file());
    } else {
      write(directory.file(images_name), images_file());
      write(directory.file(labels_name), labels_file());
    }
    const train::Dataset unit = train::load_images_labels(directory.path(), true, train::Inputs::unit);
    CHECK(unit.count == count);
    CHECK(unit.rows == 28);
    CHECK(unit.columns == 28);
    CHECK(unit.labels == std::vector<std::int64_t>{0, 9, 3, 3, 1});
    REQUIRE(unit.images.size() == payload);
    const train::Dataset normalized = train::load_images_labels(directory.path(), true);
    // What a checkpoint knows its data by; as zlib.crc32 of Python says.
    CHECK(unit.checksum == 0xef7bbfc4);
    CHECK(normalized.checksum == unit.checksum);
    for (std::size_t i = 0; i < payload; ++i) {
      const double expected = static_cast<double>(static_cast<unsigned char>(pixel(i))) / 255;
      REQUIRE(unit.images[i] == doctest::Approx(expected));
      REQUIRE(normalized.images[i] == doctest::Approx((expected - 0.2860) / 0.3530));
    }
  }
}

TEST_CASE("every picture and every label counts for the checksum") {
  const auto checksum = [](const std::string& images, const std::string& labels) {
    const TemporaryDirectory directory;
    write(directory.file(images_name), images);
    write(directory.file(labels_name), labels);
    return train::load_images_labels(directory.path(), true).checksum;
  };
  const std::uint32_t before = checksum(images_file(), labels_file());
  for (const std::size_t place : {std::size_t{16}, 16 + payload - 1}) {
    std::string images = images_file();
    images[place] = static_cast<char>(images[place] + 1);
    CHECK(checksum(images, labels_file()) != before);
  }
  for (const std::size_t place : {std::size_t{8}, std::size_t{12}}) {
    std::string labels = labels_file();
    labels[place] = static_cast<char>(5);
    CHECK(checksum(images_file(), labels) != before);
  }
}

TEST_CASE("the test set has names of its own, and compression is told from the contents") {
  const TemporaryDirectory directory;
  write_gzip(directory.file("t10k-images-idx3-ubyte"), images_file());
  write(directory.file("t10k-labels-idx1-ubyte.gz"), labels_file());
  CHECK(train::load_images_labels(directory.path(), false).count == count);
  CHECK(contains(complaint(directory), images_name + ": no such file"));
}

TEST_CASE("missing files and directories are named") {
  const TemporaryDirectory directory;
  CHECK(contains(complaint(directory), "no such file"));
  write(directory.file(images_name), images_file());
  CHECK(contains(complaint(directory), labels_name + ": no such file"));
  CHECK_THROWS_WITH_AS(train::load_images_labels(directory.file("none"), true),
                       doctest::Contains("no such directory"), train::input_error);
  std::filesystem::create_directory(directory.file(labels_name));
  CHECK(contains(complaint(directory), "not a regular file"));
}

TEST_CASE("damaged IDX files are refused") {
  const std::string images = images_file();
  const std::string labels = labels_file();
  CHECK(complaint_with(images, labels).empty());

  SUBCASE("any truncation") {
    for (const std::size_t length : std::vector<std::size_t>{0, 1, 4, 15, 16, 17, 1000, images.size() - 1})
      CHECK(contains(complaint_with(images.substr(0, length), labels), "truncated"));
    for (std::size_t length = 0; length < labels.size(); ++length)
      CHECK(contains(complaint_with(images, labels.substr(0, length)), "truncated"));
  }
  SUBCASE("trailing bytes") {
    CHECK(contains(complaint_with(images + "x", labels), "1 bytes too many"));
    CHECK(contains(complaint_with(images, labels + std::string(2, '\0')), "2 bytes too many"));
  }
  SUBCASE("the wrong magic number") {
    CHECK(contains(complaint_with(labels + images, labels), "not an IDX file of images"));
    CHECK(contains(complaint_with(images, images), "not an IDX file of labels"));
  }
  SUBCASE("counts that can't be true allocate nothing") {
    for (const std::uint32_t claimed : {0U, count + 1, 1'000'000U, 0x7fffffffU, 0xffffffffU}) {
      CHECK_FALSE(
          complaint_with(images.substr(0, 4) + big_endian(claimed) + images.substr(8), labels).empty());
      CHECK_FALSE(
          complaint_with(images, labels.substr(0, 4) + big_endian(claimed) + labels.substr(8)).empty());
    }
    CHECK(contains(complaint_with(images.substr(0, 8) + big_endian(0xffffffff) + images.substr(12), labels),
                   "28 x 28"));
  }
  SUBCASE("other sizes of pictures, other numbers of labels, labels above 9") {
    CHECK(contains(
        complaint_with(images.substr(0, 8) + big_endian(14) + big_endian(56) + images.substr(16), labels),
        "14 x 56"));
    CHECK(contains(complaint_with(images, big_endian(0x801) + big_endian(4) + std::string(4, '\1')),
                   "4 labels"));
    std::string ten = labels;
    ten[10] = 10;
    CHECK(contains(complaint_with(images, ten), "label 2 is 10"));
  }
}

TEST_CASE("damaged gzip files are refused") {
  const TemporaryDirectory directory;
  const std::string path = directory.file(images_name + ".gz");
  write(directory.file(labels_name), labels_file());
  write_gzip(path, images_file());
  const std::string whole = read(path);
  REQUIRE(complaint(directory).empty());

  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    write(path, whole.substr(0, length));
    REQUIRE(contains(complaint(directory), "truncated"));
  }
  write(path, whole + "tail");
  CHECK(contains(complaint(directory), "4 bytes too many"));

  // Bytes 4 to 9 of a gzip header, its time stamp and system, concern nobody.
  // The last byte before the eight of the trailer is filled up with bits that mean nothing.
  for (std::size_t byte = 10; byte < whole.size(); ++byte) {
    if (byte + 9 == whole.size()) continue;
    CAPTURE(byte);
    std::string flipped = whole;
    flipped[byte] = static_cast<char>(flipped[byte] ^ 0x10);
    write(path, flipped);
    REQUIRE_FALSE(complaint(directory).empty());
  }
}

TEST_CASE("the JSON has exactly the documented keys") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("runs.json");
  write(path, "old");
  std::vector<train::Run> runs = two_runs();
  runs[1].train_loss[2] = std::numeric_limits<double>::quiet_NaN();
  runs[1].label_skew = 0.1;
  runs[1].mean_single_accuracy = 0.75;
  runs[1].consensus_distance = 0.0625;
  runs[1].modelled = {.delay = 5, .straggler = train::Straggler{2, 1.5}};
  train::write_json(path, runs);
  CHECK(directory.names() == std::vector<std::string>{"runs.json"});

  const nlohmann::json json = nlohmann::json::parse(read(path));
  REQUIRE(json.size() == 1);
  REQUIRE(json["runs"].size() == 2);
  for (const nlohmann::json& run : json["runs"]) {
    std::set<std::string> keys;
    for (const auto& item : run.items()) keys.insert(item.key());
    CHECK(keys == std::set<std::string>{"optimizer",
                                        "transport",
                                        "device",
                                        "ranks",
                                        "topology",
                                        "seed",
                                        "label_skew",
                                        "mean_single_accuracy",
                                        "consensus_distance",
                                        "steps",
                                        "warmup_steps",
                                        "test_accuracy",
                                        "train_loss",
                                        "bytes_sent_per_rank",
                                        "bytes_sent_per_compressed_step",
                                        "dense_bytes_per_step",
                                        "parameters_hash",
                                        "ranks_agree",
                                        "seconds",
                                        "settings",
                                        "modelled",
                                        "communication_rounds",
                                        "waiting_share"});
  }
  const nlohmann::json& adam = json["runs"][0];
  CHECK(adam["optimizer"] == "adam");
  CHECK(adam["device"] == "cpu");
  CHECK(adam["seed"] == 18446744073709551615ULL);
  CHECK(adam["train_loss"] == std::vector<double>{2.5, 1.25, 0.5});
  CHECK(adam["bytes_sent_per_compressed_step"] == 0);
  CHECK(adam["ranks_agree"] == true);
  CHECK(adam["seconds"]["compute"] == 1.5);
  CHECK(adam["seconds"]["local_passes"] == 0.25);
  CHECK(adam["seconds"]["communication"] == 0.125);
  CHECK(adam["seconds"]["total"] == 2);
  CHECK(json["runs"][1]["warmup_steps"] == 1);
  CHECK(adam["settings"] ==
        nlohmann::json{{"clip-norm", "none"}, {"period", 8}, {"seed", 18446744073709551615ULL}});
  CHECK(adam["communication_rounds"] == 37);
  CHECK(adam["waiting_share"] == std::vector<double>{0.25, 0.5, 0.75, 0.125});
  CHECK(adam["modelled"].is_null());
  CHECK(json["runs"][1]["modelled"] == nlohmann::json{{"delay_ms", 5.0},
                                                      {"bandwidth_mbit_per_second", nullptr},
                                                      {"straggler", {{"rank", 2}, {"factor", 1.5}}}});
  for (const char* key : {"label_skew", "mean_single_accuracy", "consensus_distance"})
    CHECK(adam[key].is_null());
  CHECK(json["runs"][1]["train_loss"][2].is_null());
  CHECK(json["runs"][1]["label_skew"] == 0.1);
  CHECK(json["runs"][1]["mean_single_accuracy"] == 0.75);
  CHECK(json["runs"][1]["consensus_distance"] == 0.0625);

  train::write_json(path, {});
  CHECK(nlohmann::json::parse(read(path))["runs"].empty());
}

TEST_CASE("the CSV has one row for each step and run") {
  const TemporaryDirectory directory;
  std::vector<train::Run> runs = two_runs();
  runs[1].seed = 2;
  runs[1].consensus_distance = 0.0625;
  train::write_csv(directory.file("runs.csv"), runs);
  CHECK(directory.names() == std::vector<std::string>{"runs.csv"});
  CHECK(read(directory.file("runs.csv")) ==
        "optimizer,seed,step,loss,bytes,consensus_distance\n"
        "adam,18446744073709551615,1,2.5,1000,\n"
        "adam,18446744073709551615,2,1.25,2000,\n"
        "adam,18446744073709551615,3,0.5,3000,\n"
        "one-bit-adam,2,1,2.5,1000,\n"
        "one-bit-adam,2,2,1.25,1032,\n"
        "one-bit-adam,2,3,0.5,1064,0.0625\n");
}

TEST_CASE("the table gives figures for a reader") {
  const std::string table = train::format_table(two_runs());
  for (const char* part : {"4 ranks (threads), scatter-gather", "adam", "one-bit-adam", "87.50 %", "0.5000",
                           "3.00 kB", "1.06 kB", "32 B", "1.00x", "2.82x", "31.2x", "  yes\n", "   NO\n"}) {
    CAPTURE(part);
    CHECK(contains(table, part));
  }
  CHECK(columns(table) <= 120);
  CHECK(train::format_table({}).empty());
  std::vector<train::Run> elsewhere = two_runs();
  for (train::Run& run : elsewhere) run.device = "cuda";
  CHECK(contains(train::format_table(elsewhere), "4 ranks (threads, cuda), scatter-gather"));
}

TEST_CASE("the table counts rounds, and says what is modelled and who waits") {
  std::vector<train::Run> runs = two_runs();
  runs[1].communication_rounds = 123456;
  const std::string plain = train::format_table(runs);
  CHECK(contains(plain, " 0.5000      37 3.00 kB"));
  CHECK(contains(plain, " 0.5000  123456 1.06 kB"));
  for (const char* part : {"modelled", "waiting"}) CHECK_FALSE(contains(plain, part));

  for (train::Run& run : runs)
    run.modelled = {.delay = 2.5, .bandwidth = 100, .straggler = train::Straggler{1, 2}};
  const std::string table = train::format_table(runs);
  CHECK(columns(table) <= 120);
  for (const char* part : {"\nmodelled: links of 2.5 ms and 100 Mbit/s; rank 1 computes 2 times as long\n",
                           " modelled seconds ", "\nwaiting ", "40.6 %     12.5 %     75.0 %\n"}) {
    CAPTURE(part);
    CHECK(contains(table, part));
  }
  for (train::Run& run : runs) run.modelled = {.delay = 2.5};
  CHECK(contains(train::format_table(runs), "\nmodelled: links of 2.5 ms and any number of bytes\n"));
  for (train::Run& run : runs) run.modelled = {.straggler = train::Straggler{0, 1.25}};
  CHECK(contains(train::format_table(runs), "\nmodelled: rank 0 computes 1.25 times as long\n"));
  CHECK(contains(train::format_table(runs), "\nwaiting "));
}

TEST_CASE("the table says how far apart decentralized ranks are") {
  std::vector<train::Run> runs = two_runs();
  CHECK_FALSE(contains(train::format_table(runs), "distance"));
  runs[1].optimizer = "dm-sgd";
  runs[1].topology = "ring";
  runs[1].warmup_steps = 0;
  runs[1].label_skew = runs[0].label_skew = 0.1;
  runs[1].mean_single_accuracy = 0.75;
  runs[1].consensus_distance = 0.0123;
  const std::string table = train::format_table(runs);
  CHECK(columns(table) <= 120);
  for (const char* part : {"4 ranks (threads), ring, label skew 0.1, seed 1844", "consensus distance\ndm-sgd",
                           "87.50 %", "75.00 %", "1.23e-02\n", "went to neighbours"}) {
    CAPTURE(part);
    CHECK(contains(table, part));
  }
  // Local updates are neither compressed nor the neighbours'.
  runs[1].bytes_sent_per_compressed_step = 0;
  CHECK(contains(train::format_table(runs), "* the last compressed step\n"));
  CHECK(contains(train::format_table(runs), "consensus distance\ndm-sgd"));
  // Their parameters differ as they should.
  CHECK_FALSE(contains(table, "NO"));
  CHECK(contains(table, "yes"));
}

TEST_CASE("the table says what optimizers don't have in common") {
  const std::string table = train::format_table(all_runs());
  CHECK(columns(table) <= 120);
  for (const train::Method& kind : train::methods())
    CHECK(contains(table, "\n" + std::string(train::name(kind)) + " "));
  for (const char* part :
       {"4 ranks (threads), seed 18446744073709551615, 3 steps\n",
        "\nall-gather: deep-gradient-compression, ef21-sgd, ",
        "\nscatter-gather: one-bit-adam, zero-one-adam, error-feedback-sgd",
        "\nsymmetric-exponential: d-sgd, awc-d-sgd", "\ncompressed after step 1: ef21-sgd\n",
        "\ncompressed after step 2: one-bit-adam\n"}) {
    CAPTURE(part);
    CHECK(contains(table, part));
  }
}

TEST_CASE("the plot is one SVG with every optimizer in it") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("it's a $plot.svg");
  train::write_plot(path, two_runs());
  CHECK(directory.names().size() == 1);
  const std::string picture = read(path);
  for (const char* part : {"<svg", "</svg>", ">adam<", ">one-bit-adam<", "compression starts"}) {
    CAPTURE(part);
    CHECK(contains(picture, part));
  }
  SUBCASE("also with all there are") {
    train::write_plot(path, all_runs());
    const std::string full = read(path);
    for (const train::Method& kind : train::methods())
      CHECK(contains(full, ">" + std::string(train::name(kind)) + "<"));
  }
  SUBCASE("also of one rank that sends nothing") {
    train::Run alone = two_runs()[0];
    alone.bytes_after_step = {0, 0, 0};
    train::write_plot(path, {alone});
    CHECK(contains(read(path), "</svg>"));
  }
  SUBCASE("also of a single step and a run that diverges") {
    std::vector<train::Run> runs = two_runs();
    runs[0].train_loss = {2.0};
    runs[1].train_loss = {2.0, std::numeric_limits<double>::infinity(), std::nan("")};
    train::write_plot(path, runs);
    CHECK(contains(read(path), "</svg>"));
  }
  SUBCASE("nothing to draw keeps the old picture") {
    train::Run empty;
    CHECK_THROWS_AS(train::write_plot(path, {empty}), train::input_error);
    CHECK(read(path) == picture);
  }
}

TEST_CASE("reports that can't be written say so") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("none/runs");
  CHECK_THROWS_WITH_AS(train::write_json(path, two_runs()), doctest::Contains("can't be written"),
                       train::input_error);
  CHECK_THROWS_AS(train::write_csv(path, two_runs()), train::input_error);
  CHECK_THROWS_AS(train::write_plot(path, two_runs()), train::input_error);
}

/// What `work` is refused with; empty where it isn't.
template <class Work>
std::string complaint_of(Work work) {
  try {
    work();
  } catch (const train::input_error& fault) {
    return fault.what();
  }
  return "";
}

TEST_CASE("a full disk is called that, whatever is written, and the old file stays") {
  const TemporaryDirectory directory;
  const std::string full = directory.file("link"), reason = "No space left on device";
  // A link, lest a mistake costs the machine its device.
  std::filesystem::create_symlink("/dev/full", full);
  CHECK(contains(complaint_of([&] { train::write_json(full, two_runs()); }), reason));
  CHECK(contains(complaint_of([&] { train::write_csv(full, two_runs()); }), reason));
  CHECK(contains(complaint_of([&] { train::write_plot(full, two_runs()); }), reason));
  CHECK(std::filesystem::is_symlink(full));
  // Small enough for a buffer, and flushed at the end alone.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(full.c_str(), "w"), std::fclose);
  CHECK(contains(complaint_of([&] { train::print(out.get(), "text"); }), reason));
}

TEST_CASE("outputs go through links, devices and pipes") {
  const TemporaryDirectory directory;
  const auto file = [&](const char* name) { return directory.file(name); };
  std::filesystem::create_directory(file("other"));
  write(file("other/old"), "old");
  std::filesystem::create_symlink("other/old", file("link"));
  std::filesystem::create_symlink("link", file("second"));
  std::filesystem::create_symlink("other/new", file("dangling"));
  train::check_output("--json", file("second"));
  train::write_output(file("second"), "first");
  train::check_output("--json", file("dangling"));
  train::write_output(file("dangling"), "second");
  CHECK(read(file("other/old")) == "first");
  CHECK(read(file("other/new")) == "second");
  for (const char* name : {"link", "second", "dangling"}) CHECK(std::filesystem::is_symlink(file(name)));
  std::filesystem::create_symlink("circle", file("circle"));
  CHECK(contains(complaint_of([&] { train::write_output(file("circle"), "text"); }), "Too many levels"));

  REQUIRE(mkfifo(file("pipe").c_str(), 0600) == 0);
  std::string got;
  std::thread reader([&] { got = read(file("pipe")); });
  train::check_output("--json", file("pipe"));
  train::write_output(file("pipe"), "through a pipe");
  reader.join();
  CHECK(got == "through a pipe");
  CHECK(std::filesystem::is_fifo(file("pipe")));
  CHECK(directory.names() ==
        std::vector<std::string>{"circle", "dangling", "link", "other", "pipe", "second"});
}

TEST_CASE("what a checkpoint says of a run is read as it was, or refused") {
  const TemporaryDirectory directory;
  const train::Settings settings{{"optimizer", "adam"}, {"pictures", "64"}, {"ranks", "4"}, {"seed", "7"}};
  train::SavedRun saved;
  saved.step = 2;
  saved.train_loss = {2.25, std::nan("")};
  saved.bytes_after_step = {10, 20};
  saved.sent = {{20, 10, 0, 2, 0.5, 0.25}};
  const std::string root = directory.path();
  const std::string folder = root + "/adam/step-00000002";
  const train::Method& adam = train::method("adam");
  const train::Wanted wanted{settings, 1, false};
  CHECK_FALSE(train::find_saved_run(root, adam, wanted));
  CHECK_FALSE(train::ranks_at_start(root, adam));
  terse::ThreadGroup(1).run([&](terse::Threads& transport) {
    terse::checkpoint::Folder checkpoints(train::checkpoints_of(root, adam), transport);
    checkpoints.save(2, [&](terse::checkpoint::Draft& draft) {
      draft.write(train::state_file, train::state_of(saved, settings));
    });
  });
  const train::SavedRun found = train::read_saved_run(terse::checkpoint::Manifest::read(folder), wanted);
  CHECK(found.train_loss[0] == 2.25);
  CHECK(std::isnan(found.train_loss[1]));
  CHECK(found.bytes_after_step == saved.bytes_after_step);
  CHECK(found.sent[0].waiting == 0.25);
  CHECK(train::find_saved_run(root, adam, wanted)->step == 2);
  train::Wanted others = wanted;
  others.settings["seed"] = "8";
  CHECK(contains(complaint_of([&] { train::find_saved_run(root, adam, others); }),
                 "was saved with --seed 7, but now it is 8"));
  // Four ranks began, one has saved, two would go on.
  CHECK(train::ranks_at_start(root, adam) == 4);
  others = {settings, 2, false};
  CHECK(contains(complaint_of([&] { train::find_saved_run(root, adam, others); }),
                 "was saved by 1 ranks, and now there are 2: start as many, or give --elastic"));
  others.elastic = true;
  CHECK(train::find_saved_run(root, adam, others)->sent.size() == 1);
  others.settings["ranks"] = "3";
  CHECK(contains(complaint_of([&] { train::find_saved_run(root, adam, others); }),
                 "was saved with 4 ranks at its beginning, but now it is 3"));
  CHECK(contains(complaint_of([&] { train::check_nothing_newer(root, adam, 1); }),
                 "already holds step 2 of adam"));
  CHECK(complaint_of([&] { train::check_nothing_newer(root, adam, 2); }).empty());

  // A digit that makes sense, too.
  std::string state = read(folder + "/train-state.json");
  state.replace(state.find("2.25"), 4, "2.24");
  write(folder + "/train-state.json", state);
  CHECK_THROWS_AS(train::read_saved_run(terse::checkpoint::Manifest::read(folder), wanted),
                  terse::checkpoint_error);
  CHECK(contains(complaint_of([&] { train::find_saved_run(root, adam, wanted); }),
                 "train-state.json': has the digest"));

  const terse::checkpoint::RunLock lock = train::lock_checkpoints(root);
  CHECK(contains(complaint_of([&] { train::lock_checkpoints(root); }), "is in use by process"));
  CHECK(contains(complaint_of([] { train::lock_checkpoints("/dev/null/state"); }), "--checkpoint: "));
  const auto status = [](const std::string& folder) {
    try {
      train::lock_checkpoints(folder);
    } catch (const train::input_error& fault) {
      return fault.status();
    }
    return 0;
  };
  CHECK(status(root) == terse::checkpoint::in_use_status);
  CHECK(status("/dev/null/state") == 2);
}

TEST_CASE("options are read into their places") {
  const train::Options standard = parse({});
  CHECK(standard.optimizers == list({"adam", "one-bit-adam"}));
  CHECK(standard.ranks == 4);
  CHECK_FALSE(standard.ranks_given);
  CHECK_FALSE(standard.clip_norm.has_value());
  CHECK(standard.device == train::Device::cpu);
  CHECK(standard.graph == train::Graph::symmetric_exponential);
  CHECK(standard.average_every == 0);
  CHECK_FALSE(standard.label_skew.has_value());
  CHECK_FALSE(standard.consensus_rate.has_value());
  CHECK(standard.momentum == 0.9);
  CHECK_FALSE(standard.modelled.any());
  CHECK(standard.rate_schedule == train::RateSchedule::cosine);

  const train::Options given = parse({"--optimizers",
                                      "momentum-sgd,one-bit-adam,dm-sgd",
                                      "--model=cnn",
                                      "--ranks",
                                      "7",
                                      "--topology",
                                      "ring",
                                      "--scale",
                                      "mean-abs",
                                      "--granularity",
                                      "block",
                                      "--update-clip",
                                      "inf",
                                      "--clip-norm",
                                      "2.5",
                                      "--seed",
                                      "18446744073709551615",
                                      "--on-non-finite",
                                      "skip",
                                      "--transport",
                                      "mpi",
                                      "--inputs",
                                      "unit",
                                      "--warmup-fraction",
                                      "0",
                                      "--checkpoint",
                                      "d",
                                      "--checkpoint-every",
                                      "12",
                                      "--graph",
                                      "torus",
                                      "--average-every",
                                      "16",
                                      "--label-skew",
                                      "0.1",
                                      "--momentum",
                                      "0.5",
                                      "--rate-schedule",
                                      "constant",
                                      "--quiet"});
  CHECK(given.optimizers == list({"momentum-sgd", "one-bit-adam", "dm-sgd"}));
  CHECK(given.model == "cnn");
  CHECK(given.ranks == 7);
  CHECK(given.ranks_given);
  CHECK(given.topology == train::Topology::ring);
  CHECK(given.scale == train::Scale::mean_abs);
  CHECK(given.granularity == train::Granularity::block);
  CHECK(std::isinf(given.update_clip));
  CHECK(given.clip_norm == 2.5);
  CHECK(given.seed == 18446744073709551615ULL);
  CHECK(given.on_non_finite == train::NonFinite::skip);
  CHECK(standard.transport == train::Transport::automatic);
  CHECK(given.transport == train::Transport::mpi);
  CHECK(given.inputs == train::Inputs::unit);
  CHECK(given.warmup_fraction == 0);
  CHECK(given.checkpoint_every == 12);
  CHECK(given.graph == train::Graph::torus);
  CHECK(given.average_every == 16);
  CHECK(given.label_skew == 0.1);
  CHECK(given.momentum == 0.5);
  CHECK(given.rate_schedule == train::RateSchedule::constant);
  CHECK(given.quiet);
  CHECK(parse({"--optimizers", "beer", "--consensus-rate", "0.25"}).consensus_rate == 0.25);
}

TEST_CASE("options of local updates are read, and each optimizer has defaults of its own") {
  using train::method;
  const train::Options given =
      parse({"--optimizers", "post-local-sgd,slowmo,overlap-local-sgd", "--period", "12",
             "--outer-learning-rate", "0.5", "--outer-momentum", "0.25", "--inner-buffers", "average",
             "--average-until", "0.75", "--pullback", "1", "--anchor-momentum", "0"});
  for (const train::Method& kind : train::methods()) {
    if (!train::is_local(kind)) continue;
    CAPTURE(train::name(kind));
    CHECK(train::period_of(given) == 12);
    CHECK(train::outer_learning_rate_of(given, kind) == 0.5);
    CHECK(train::outer_momentum_of(given, kind) == 0.25);
    CHECK(train::inner_buffers_of(given) == train::InnerBuffers::average);
    CHECK(train::average_until_of(given, kind) == (is(kind, {"post-local-sgd"}) ? 0.75 : 0));
    CHECK(train::pullback_of(given) == 1);
    CHECK(train::anchor_momentum_of(given) == 0);
  }
  train::Options standard;
  standard.ranks = 8;
  CHECK(train::period_of(standard) == 8);
  CHECK(train::outer_learning_rate_of(standard, method("slowmo")) == 1);
  CHECK(train::outer_learning_rate_of(standard, method("bmuf-nesterov")) == 1);
  CHECK(train::outer_learning_rate_of(standard, method("diloco")) == 0.7);
  CHECK(train::outer_momentum_of(standard, method("slowmo-sgp")) == 0.5);
  CHECK(train::outer_momentum_of(standard, method("bmuf-classical")) == 0.875);
  CHECK(train::outer_momentum_of(standard, method("bmuf-nesterov")) == 0.875);
  CHECK(train::outer_momentum_of(standard, method("diloco")) == 0.9);
  CHECK(train::inner_buffers_of(standard) == train::InnerBuffers::keep);
  CHECK(train::average_until_of(standard, method("post-local-sgd")) == 0.5);
  CHECK(train::average_until_of(standard, method("local-sgd")) == 0);
  CHECK(train::outer_learning_rate_of(standard, method("streaming-diloco")) == 0.7);
  CHECK(train::outer_momentum_of(standard, method("streaming-diloco")) == 0.9);
  CHECK(train::pullback_of(standard) == 0.6);
  CHECK(train::anchor_momentum_of(standard) == 0.7);
}

TEST_CASE("options of streaming-diloco are read, and a delay beyond the period is refused") {
  const train::Options standard, given = parse({"--optimizers", "streaming-diloco", "--fragments", "3",
                                                "--fragment-delay", "8", "--local-share", "0.25"});
  CHECK(standard.fragments == 4);
  CHECK(standard.fragment_delay == 1);
  CHECK(standard.local_share == 0.5);
  CHECK(given.fragments == 3);
  CHECK(given.fragment_delay == 8);
  CHECK(given.local_share == 0.25);
  CHECK(parse({"--optimizers", "streaming-diloco", "--fragment-delay", "0"}).fragment_delay == 0);
  CHECK(contains(refusal({"--optimizers", "streaming-diloco", "--fragment-delay", "9"}),
                 "--fragment-delay: 9 steps are more than --period, 8"));
  CHECK(contains(refusal({"--optimizers", "streaming-diloco", "--fragment-delay", "-1"}), "0 or more"));
  for (const char* wrong : {"0", "65537"})
    CHECK(contains(refusal({"--optimizers", "streaming-diloco", "--fragments", wrong}), "from 1 to 65536"));
  CHECK(contains(refusal({"--optimizers", "streaming-diloco", "--local-share", "1.1"}), "from 0 to 1"));
}

TEST_CASE("options of zero-one-adam and of swarms are read") {
  const train::Options standard;
  CHECK(standard.variance_updates == 16);
  CHECK(standard.local_interval == 0.1);
  CHECK(standard.most_local_steps == 4);
  const train::Options given =
      parse({"--optimizers", "zero-one-adam,swarm-sgd-lattice", "--variance-updates", "4", "--local-interval",
             "1", "--most-local-steps", "1", "--lattice-step", "0.5"});
  CHECK(given.variance_updates == 4);
  CHECK(given.local_interval == 1);
  CHECK(given.most_local_steps == 1);
  CHECK(train::lattice_step_of(given) == 0.5);

  // As far apart as ranks get between meetings: with the rate and with the period.
  const double step = train::lattice_step_of(standard);
  CHECK(step == doctest::Approx(0.02 * 0.05 * 8));
  CHECK(train::lattice_step_of(parse({"--optimizers", "swarm-sgd-lattice", "--period", "4"})) ==
        doctest::Approx(step / 2));
  CHECK(train::lattice_step_of(parse({"--optimizers", "swarm-sgd-lattice", "--sgd-learning-rate", "0.1"})) ==
        doctest::Approx(step * 2));
  CHECK(train::moniqua_bound_of(standard) == doctest::Approx(5 * 0.05));
  CHECK(train::moniqua_bound_of(parse({"--optimizers", "moniqua-sgd", "--moniqua-bound", "0.5"})) == 0.5);
}

TEST_CASE("kinds of local updates are told apart") {
  for (const train::Method& kind : train::methods()) {
    CAPTURE(train::name(kind));
    const std::string route = kind.route;
    if (contains(kind.name, "swarm-sgd")) CHECK((route == "random-matching" || route == "mailbox"));
    if (route == "random-matching" || route == "mailbox") {
      CHECK(train::is_local(kind));
      if (train::uses(kind, "inner-buffers")) {
        CHECK(refusal({"--optimizers", kind.name, "--inner-buffers", "reset"}).empty());
        CHECK(contains(refusal({"--optimizers", kind.name, "--inner-buffers", "average"}),
                       "--inner-buffers: pairs of ranks have no mean of all"));
      }
    }
    if (kind.late) CHECK_FALSE(train::uses(kind, "inner-buffers"));
  }
  // Alone between meetings, but by no period.
  CHECK(train::keeps_own_models(train::method("zero-one-adam")));
  CHECK_FALSE(train::is_local(train::method("zero-one-adam")));
  CHECK_FALSE(train::keeps_own_models(train::method("one-bit-adam")));
}

TEST_CASE("what ranks that wait for nobody can't do is refused") {
  for (const char* const option : {"--delay", "--bandwidth"}) {
    CHECK(contains(refusal({"--optimizers", "swarm-sgd,async-swarm-sgd", option, "10"}), "read a mailbox"));
    CHECK(refusal({"--optimizers", "swarm-sgd,swarm-sgd-non-blocking", option, "10"}).empty());
  }
  CHECK(refusal({"--optimizers", "async-swarm-sgd", "--straggler", "1:2"}).empty());
  CHECK(contains(refusal({"--optimizers", "async-swarm-sgd", "--on-non-finite", "skip"}),
                 "--on-non-finite: ranks skip a step together"));
  CHECK(refusal({"--optimizers", "async-swarm-sgd", "--on-non-finite", "zero"}).empty());
  CHECK(refusal({"--optimizers", "swarm-sgd", "--on-non-finite", "skip"}).empty());
}

TEST_CASE("options are refused where nobody has a use for them") {
  const struct {
    const char *option, *value;
  } cases[]{{"momentum", "0.5"},          {"warmup-fraction", "0.1"},
            {"topology", "ring"},         {"scale", "mean-abs"},
            {"granularity", "block"},     {"bias-correction", "first-stage"},
            {"layers", "*.bias=dense"},   {"update-clip", "5"},
            {"most-masked", "0.1"},       {"ratio", "0.1"},
            {"variance-updates", "3"},    {"local-interval", "0.2"},
            {"most-local-steps", "2"},    {"graph", "ring"},
            {"average-every", "4"},       {"consensus-rate", "0.3"},
            {"moniqua-bound", "0.5"},     {"period", "4"},
            {"outer-learning-rate", "1"}, {"outer-momentum", "0.5"},
            {"inner-buffers", "reset"},   {"average-until", "0.5"},
            {"pullback", "0.5"},          {"anchor-momentum", "0.5"},
            {"fragments", "2"},           {"fragment-delay", "2"},
            {"local-share", "0"},         {"lattice-step", "0.001"}};
  std::set<std::string> tried;
  for (const auto& one : cases) {
    const std::string option = std::string("--") + one.option;
    CAPTURE(option);
    tried.insert(one.option);
    std::string whom, others;
    for (const train::Method& kind : train::methods())
      (train::uses(kind, one.option) ? whom : others) += std::string(", ") + kind.name;
    REQUIRE_FALSE(whom.empty());
    REQUIRE_FALSE(others.empty());
    CHECK(refusal({"--optimizers", "lamb", option.c_str(), one.value}) ==
          option + " is for " + whom.substr(2) + "; --optimizers names none of them");
    for (std::size_t at; (at = others.find(", ")) != std::string::npos;) others.replace(at, 2, ",");
    CHECK_FALSE(refusal({"--optimizers", others.c_str() + 1, option.c_str(), one.value}).empty());
    // One of several is enough.
    for (const train::Method& kind : train::methods())
      if (train::uses(kind, one.option)) {
        CAPTURE(kind.name);
        CHECK(refusal({"--optimizers", (std::string("lamb,") + kind.name).c_str(), option.c_str(), one.value})
                  .empty());
      }
  }
  for (const train::Method& kind : train::methods())
    for (const train::Use& use : kind.uses)
      if (use.option != nullptr) CHECK_MESSAGE(tried.count(use.option) == 1, use.option);
  // Of some the table itself is looked at.
  const auto users = [](const char* option, const char* value) {
    return refusal({"--optimizers", "sign-sgd", option, value});
  };
  CHECK(users("--warmup-fraction", "0.1") ==
        "--warmup-fraction is for one-bit-adam, zero-one-adam, deep-gradient-compression, one-bit-lamb; "
        "--optimizers names none of them");
  CHECK(contains(users("--scale", "rms"), "--scale is for one-bit-adam; "));
  CHECK(contains(users("--average-every", "2"),
                 "is for d-sgd, awc-d-sgd, cta-d-sgd, dm-sgd, da-dm-sgd, awc-dm-sgd, qg-dm-sgd, "
                 "gradient-tracking, momentum-tracking"));
  CHECK(contains(users("--lamb-learning-rate", "0.1"), "is for lamb, one-bit-lamb"));
}

TEST_CASE("rates are refused where nobody has a use for them") {
  for (const char* const kind : {"adam", "lamb", "diloco", "sign-sgd", "error-feedback-sgd", "beer"}) {
    CAPTURE(kind);
    const auto fine = [&](const char* option) {
      return refusal({"--optimizers", kind, option, "0.1"}).empty();
    };
    const train::Method& one = train::method(kind);
    CHECK(fine("--learning-rate") == is(one, {"adam", "diloco"}));
    CHECK(fine("--lamb-learning-rate") == is(one, {"lamb"}));
    CHECK(fine("--sign-learning-rate") == is(one, {"sign-sgd"}));
    CHECK(fine("--sgd-learning-rate") == is(one, {"error-feedback-sgd", "beer"}));
    CHECK(fine("--momentum") == is(one, {"sign-sgd", "error-feedback-sgd", "beer"}));
  }
}

TEST_CASE("a slow network and a straggler are read") {
  const train::Options given = parse({"--delay", "2.5", "--bandwidth", "100", "--straggler", "3:1.5"});
  CHECK(given.modelled.delay == 2.5);
  CHECK(given.modelled.bytes_per_second() == 12.5e6);
  REQUIRE(given.modelled.straggler.has_value());
  CHECK(given.modelled.straggler->rank == 3);
  CHECK(given.modelled.straggler->factor == 1.5);
  CHECK(parse({"--delay", "0"}).modelled.link());
  CHECK(parse({"--bandwidth", "1"}).modelled.link());
  const train::Modelled straggler = parse({"--straggler", "0:1"}).modelled;
  CHECK_FALSE(straggler.link());
  CHECK(straggler.any());
  CHECK(std::isinf(straggler.bytes_per_second()));
  for (const char* wrong : {"-1", "nan", "inf", "1e7", "5ms", ""})
    CHECK(contains(refusal({"--delay", wrong}), "milliseconds from 0 to 1000000"));
  for (const char* wrong : {"0", "-1", "nan", "inf", "1e10", "0.0001"})
    CHECK(contains(refusal({"--bandwidth", wrong}), "Mbit/s from 0.001"));
  for (const char* wrong : {"1", "1:", ":2", "-1:2", "1:0.5", "1:nan", "1:1001", "1:2:3", "1.5:2", "", ":"}) {
    CAPTURE(wrong);
    CHECK(refusal({"--straggler", wrong}) ==
          "--straggler: '" + std::string(wrong) + "' is not RANK:FACTOR, a rank and a number from 1 to 1000");
  }
}

TEST_CASE("a checkpoint is bound to what decides about a run, of this optimizer alone") {
  train::Dataset training;
  training.count = 60000;
  training.checksum = 0xabcdef;
  const std::set<std::string> always{
      "optimizer",     "model",        "inputs",    "label-skew",    "ranks",
      "pictures",      "checksum",     "epochs",    "batch",         "learning-rate-warmup",
      "rate-schedule", "weight-decay", "clip-norm", "on-non-finite", "seed",
      "delay",         "bandwidth",    "straggler"};
  for (const train::Method& kind : train::methods()) {
    CAPTURE(train::name(kind));
    std::set<std::string> wanted = always, found;
    wanted.insert(train::rate_of({}, kind).option);
    // The compressors of layers are in the recipe's own settings.
    for (const train::Use& use : kind.uses)
      if (use.option != nullptr && std::string(use.option) != "layers") wanted.insert(use.option);
    wanted.erase("most-masked");  // changes nothing that is computed
    if (train::is_decentralized(kind)) wanted.insert({"average-every", "consensus-rate"});
    for (const auto& [key, value] : train::settings_of({}, kind, training)) found.insert(key);
    CHECK(found == wanted);
  }
  train::Options options;
  options.ranks = 4;
  const auto value = [&](const char* kind, const char* key) {
    return train::settings_of(options, train::method(kind), training).at(key);
  };
  CHECK(value("bmuf-nesterov", "optimizer") == "bmuf-nesterov");
  CHECK(value("adam", "pictures") == "60000");
  CHECK(value("adam", "checksum") == "00abcdef");
  CHECK(value("bmuf-nesterov", "outer-momentum") == "0.75");
  CHECK(value("adam", "straggler") == "none");
  options.period = 16;
  options.outer_learning_rate = 0.5;
  options.outer_momentum = 0.25;
  options.inner_buffers = train::InnerBuffers::reset;
  options.average_until = 0.125;
  options.pullback = 0.375;
  options.anchor_momentum = 0.625;
  options.modelled = {.delay = 2.5, .bandwidth = 100, .straggler = train::Straggler{1, 2}};
  CHECK(value("cocod-sgd", "period") == "16");
  CHECK(value("slowmo-sgp", "outer-learning-rate") == "0.5");
  CHECK(value("diloco", "outer-momentum") == "0.25");
  CHECK(value("local-sgd", "inner-buffers") == "reset");
  CHECK(value("post-local-sgd", "average-until") == "0.125");
  CHECK(value("overlap-local-sgd", "pullback") == "0.375");
  CHECK(value("overlap-local-sgd", "anchor-momentum") == "0.625");
  options.variance_updates = 5;
  options.local_interval = 0.25;
  options.most_local_steps = 3;
  options.lattice_step = 0.0625;
  options.moniqua_bound = 0.375;
  CHECK(value("swarm-sgd", "period") == "16");
  CHECK(value("swarm-sgd-lattice", "lattice-step") == "0.0625");
  CHECK(value("moniqua-sgd", "moniqua-bound") == "0.375");
  CHECK(value("zero-one-adam", "variance-updates") == "5");
  CHECK(value("zero-one-adam", "local-interval") == "0.25");
  CHECK(value("zero-one-adam", "most-local-steps") == "3");
  CHECK(value("adam", "delay") == "2.5");
  CHECK(value("adam", "bandwidth") == "100");
  CHECK(value("adam", "straggler") == "1:2");
}

TEST_CASE("optimizers are known by the names of papers, too") {
  CHECK(parse({"--optimizers", "pmsgd,dsgd,dmsgd,da-dmsgd,awc-dmsgd,qg-dmsgd,d2-dmsgd,sgp,choco,deepsqueeze"})
            .optimizers == list({"momentum-sgd", "d-sgd", "dm-sgd", "da-dm-sgd", "awc-dm-sgd", "qg-dm-sgd",
                                 "d2-dm-sgd", "stochastic-gradient-push", "choco-sgd", "deep-squeeze"}));
  CHECK(contains(refusal({"--optimizers", "dm-sgd,dmsgd"}), "'dm-sgd' is named twice"));
}

TEST_CASE("every optimizer has a word of its own, a rate and a topology") {
  std::set<std::string> words;
  for (const train::Method& kind : train::methods()) {
    CAPTURE(train::name(kind));
    CHECK(words.insert(kind.name).second);
    if (kind.synonym != nullptr) CHECK(words.insert(kind.synonym).second);
    std::string with_others = kind.name;
    for (const char* const other : {"one-bit-adam", "lamb", "sign-sgd", "ef21-sgd"})
      if (!is(kind, {other})) with_others += std::string(",") + other;
    const train::Options options =
        parse({"--optimizers", with_others.c_str(), "--learning-rate", "0.25", "--sgd-learning-rate", "0.5",
               "--sign-learning-rate", "0.125", "--lamb-learning-rate", "0.0625", "--ratio", "1",
               "--topology", "ring"});
    CHECK(parse({"--optimizers", train::name(kind)}).optimizers == std::vector{&kind});
    CHECK(options.ratio == 1);
    CHECK(train::ratio_of(options, kind) == 1);
    const train::HighestRate rate = train::rate_of(options, kind);
    using enum train::Rate;
    CHECK(rate.given == (kind.rate == adam   ? 0.25
                         : kind.rate == lamb ? 0.0625
                         : kind.rate == sign ? 0.125
                                             : 0.5));
    CHECK(rate.option == std::string(kind.rate == adam   ? "learning-rate"
                                     : kind.rate == lamb ? "lamb-learning-rate"
                                     : kind.rate == sign ? "sign-learning-rate"
                                                         : "sgd-learning-rate"));
    const bool whole = is(kind, {"error-feedback-sgd"});
    CHECK(rate.rate == doctest::Approx(rate.given * (whole ? 10 : 1)));
    train::Options other = options;
    other.momentum = 0.5;
    CHECK(train::rate_of(other, kind).rate == rate.given * (whole ? 2 : 1));
    // Of one-bit-adam alone it can be chosen.
    CHECK(train::route_of(options, kind) == std::string(train::is_decentralized(kind)
                                                            ? "symmetric-exponential"
                                                        : is(kind, {"one-bit-adam"}) ? "ring"
                                                                                     : kind.route));
  }
  const auto route = [](const char* kind) { return std::string(train::route_of({}, train::method(kind))); };
  CHECK(route("ef21-sgd") == "all-gather");
  CHECK(route("one-bit-adam") == "scatter-gather");
  CHECK(route("slowmo-sgp") == "symmetric-exponential");
  CHECK(route("slowmo") == "scatter-gather");
  CHECK(route("swarm-sgd") == "random-matching");
  CHECK(route("async-swarm-sgd") == "mailbox");
  CHECK(train::ratio_of({}, train::method("deep-gradient-compression")) == 0.005);
  CHECK(train::ratio_of({}, train::method("ef21-sgd")) == 0.05);
  CHECK(train::ratio_of({}, train::method("demo")) == 32.0 / 4096);
  CHECK_THROWS_AS(train::method("sgd"), std::logic_error);
}

TEST_CASE("a device takes the optimizers that run there") {
  std::string rest;
  for (const train::Method& kind : train::methods()) {
    CAPTURE(train::name(kind));
    CHECK(train::runs_on(train::Device::cpu, kind));
    CHECK(parse({"--device", "cpu", "--optimizers", train::name(kind)}).device == train::Device::cpu);
    if (train::runs_on(train::Device::cuda, kind)) {
      CHECK(parse({"--optimizers", train::name(kind), "--device", "cuda"}).device == train::Device::cuda);
      rest += (rest.empty() ? "" : ", ") + std::string(train::name(kind));
    }
  }
  for (const train::Method& kind : train::methods())
    if (!train::runs_on(train::Device::cuda, kind))
      CHECK(refusal({"--optimizers", train::name(kind), "--device", "cuda"}) ==
            "--device: " + std::string(train::name(kind)) + " runs on the CPU so far; on cuda there are " +
                rest);
  CHECK(rest ==
        "adam, one-bit-adam, momentum-sgd, error-feedback-sgd, dist-error-feedback-sgd, sign-sgd, "
        "quantized-sgd");
  CHECK(contains(refusal({"--device", "gpu"}), "--device: 'gpu' is not one of cpu, cuda"));
}

TEST_CASE("who the ranks are, and what their messages go over") {
  const auto processes = [](std::vector<const char*> arguments, int world) {
    return train::ranks_are_processes(parse(std::move(arguments)), world);
  };
  CHECK_FALSE(processes({}, 1));
  CHECK(processes({}, 3));
  CHECK(processes({"--transport", "mpi"}, 1));
  CHECK_FALSE(processes({"--transport", "threads"}, 1));
  for (const char* const one : {"nccl", "staged"}) {
    CHECK_FALSE(processes({"--transport", one, "--device", "cuda"}, 1));
    CHECK(processes({"--transport", one, "--device", "cuda"}, 2));
    CHECK(refusal({"--transport", one}) ==
          std::string("--transport: ") + one + " is for messages of GPUs, and --device is cpu");
  }
  CHECK_THROWS_WITH_AS(processes({"--transport", "threads"}, 3),
                       "mpirun started 3 processes; they need --transport mpi to be one job",
                       train::input_error);
  CHECK_THROWS_WITH_AS(processes({"--ranks", "4"}, 3), "--ranks: 4 asked for, but mpirun started 3",
                       train::input_error);
  CHECK(processes({"--ranks", "3"}, 3));
  const std::vector<const char*> slow{"--optimizers", "adam", "--device",   "cuda",
                                      "--delay",      "1",    "--transport"};
  for (const char* const one : {"auto", "threads", "mpi", "nccl", "staged"}) {
    std::vector<const char*> arguments = slow;
    arguments.push_back(one);
    CHECK(contains(refusal(arguments), "nccl's don't") == (std::string(one) == "nccl"));
  }
  CHECK(train::deadline_of(parse({"--deadline", "2.5"})) == std::chrono::milliseconds(2500));
  CHECK(train::deadline_of(parse({"--deadline", "1e300"})) == std::chrono::seconds(30'000'000));
}

TEST_CASE("an optimizer on a graph where it diverges is refused with the reason and a way out") {
  using enum train::Graph;
  for (const train::Method& kind : train::methods())
    for (const train::Graph graph : all_graphs) {
      if (!train::is_decentralized(kind)) continue;
      CAPTURE(train::name(kind));
      CAPTURE(train::name(graph));
      const train::GraphNeeds needs = kind.graph;
      const bool changes =
          graph == one_peer_exponential || graph == one_peer_hypercube || graph == random_matching;
      const bool directed = graph == exponential || graph == one_peer_exponential;
      const bool fine = needs == train::GraphNeeds::even
                            ? graph != mesh && graph != star
                            : needs == train::GraphNeeds::nothing ||
                                  (!changes && (needs == train::GraphNeeds::fixed || !directed));
      CHECK(refusal({"--optimizers", train::name(kind), "--graph", train::name(graph)}).empty() == fine);
    }
  for (const char* kind : {"decentlam", "d2", "d2-dm-sgd"})
    CHECK(refusal(
              {"--optimizers", (std::string("dm-sgd,") + kind).c_str(), "--graph", "one-peer-exponential"}) ==
          std::string("--graph: ") + kind +
              " diverges at any learning rate on graphs that are not fixed and symmetric, such as "
              "one-peer-exponential. Use one of ring, mesh, torus, star, complete, hypercube, "
              "symmetric-exponential, or qg-dm-sgd on this graph");
  CHECK(
      refusal({"--optimizers", "slowmo,slowmo-sgp", "--graph", "star"}) ==
      "--graph: slowmo-sgp's outer step takes the plain mean, and its push-sum weights keep another on star, "
      "where ranks have unequal numbers of neighbours");
  CHECK(refusal({"--optimizers", "choco-sgd", "--graph", "one-peer-exponential"}) ==
        "--graph: choco-sgd keeps sums over its neighbours from step to step, and one-peer-exponential is "
        "not fixed. "
        "Use one of ring, mesh, torus, star, complete, hypercube, exponential, symmetric-exponential, or "
        "deep-squeeze on this graph");
  for (const char* kind : {"choco-sgd", "deep-squeeze", "dcd-sgd", "beer", "moniqua-sgd"})
    CHECK(refusal({"--optimizers", kind, "--average-every", "4"}) ==
          "--average-every is for packets that are not compressed, and " + std::string(kind) + "'s are");
  for (const char* kind : {"decentlam", "momentum-consensus", "d2", "d2-dm-sgd"})
    CHECK(contains(refusal({"--optimizers", kind, "--average-every", "4"}),
                   std::string("change from step to step, and there ") + kind + " diverges. Use dm-sgd"));
  for (const char* kind : {"sgp", "slowmo-sgp"})
    CHECK(contains(refusal({"--optimizers", kind, "--average-every", "4"}), "weighs its ranks"));
  CHECK(refusal({"--optimizers", "qg-dm-sgd", "--average-every", "4"}).empty());
}

TEST_CASE("what an optimizer needs of a graph is what its rule says in the library") {
  const auto check = []<class Rule>(const char* name, Rule, bool differences = false) {
    const train::Method& kind = train::method(name);
    CAPTURE(train::name(kind));
    const train::GraphNeeds needs = kind.graph;
    CHECK((needs == train::GraphNeeds::fixed_symmetric) == Rule::facts.needs_fixed_symmetric);
    // Ef21's copies are sums over neighbours, too.
    CHECK((needs == train::GraphNeeds::fixed) == (Rule::facts.needs_fixed || differences));
  };
  const terse::AdaptThenCombine<terse::MomentumDirection> adapt_then_combine{};
  check("d-sgd", terse::AdaptThenCombine<terse::GradientDirection>{});
  check("awc-d-sgd", terse::AdaptWithCombine<terse::GradientDirection>{});
  check("cta-d-sgd", terse::CombineThenAdapt{});
  check("dm-sgd", adapt_then_combine);
  check("da-dm-sgd", terse::DoublyAveraged{});
  check("awc-dm-sgd", terse::AdaptWithCombine<terse::MomentumDirection>{});
  check("qg-dm-sgd", terse::QuasiGlobal{});
  check("decentlam", terse::MixedGradient{});
  check("momentum-consensus", terse::Displacement{});
  check("d2", terse::ExactDiffusion<terse::GradientDirection>{});
  check("d2-dm-sgd", terse::ExactDiffusion<terse::MomentumDirection>{});
  check("gradient-tracking", terse::GradientTracker{});
  check("momentum-tracking", terse::MomentumTracker{});
  check("stochastic-gradient-push", adapt_then_combine);
  check("choco-sgd", adapt_then_combine, true);
  check("deep-squeeze", adapt_then_combine);
  check("dcd-sgd", terse::DifferenceDescent{});
  check("beer", terse::CompressedTracker{}, true);
  check("moniqua-sgd", terse::AdaptWithCombine<terse::MomentumDirection>{});
}

TEST_CASE("any graph behind one type is the library's own, and promises no more than it keeps") {
  constexpr int ranks = 8;
  std::set<std::vector<double>> seen;
  for (const train::Graph kind : all_graphs) {
    CAPTURE(train::name(kind));
    const train::KeepsMean graph(kind, 7);
    // Row sums, columns, receivers, and what the type says of them.
    CHECK_NOTHROW(terse::graph::verify(graph, ranks, 6));
    if (train::Fixed::could_be(kind)) {
      CHECK_NOTHROW(terse::graph::verify(train::Fixed(kind), ranks, 6));
    } else {
      CHECK_THROWS_AS(train::Fixed{kind}, std::logic_error);
    }
    if (train::FixedSymmetric::could_be(kind)) {
      CHECK_NOTHROW(terse::graph::verify(train::FixedSymmetric(kind), ranks, 6));
    } else {
      CHECK_THROWS_AS(train::FixedSymmetric{kind}, std::logic_error);
    }

    std::vector<double> matrices;
    std::size_t most = 0;
    std::vector<terse::graph::Edge> edges;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::vector<double> matrix = terse::graph::matrix_of(graph, ranks, round);
      matrices.insert(matrices.end(), matrix.begin(), matrix.end());
      for (int rank = 0; rank < ranks; ++rank) {
        graph.row(rank, ranks, round, edges);
        most = std::max(most, edges.size());
        for (const terse::graph::Edge& edge : edges) CHECK(graph.sends(edge.peer, rank, ranks, round));
      }
    }
    // A hypercube of 8 has the hops of no other graph here; all differ.
    CHECK(seen.insert(matrices).second);
    CHECK(graph.most_neighbors(ranks) == static_cast<int>(most));
  }
  const auto ring = terse::graph::matrix_of(terse::graph::Ring{}, ranks, 0);
  CHECK(terse::graph::matrix_of(train::KeepsMean(train::Graph::ring), ranks, 0) == ring);
  CHECK_THROWS_AS(train::KeepsMean(train::Graph::hypercube).check(6), terse::usage_error);
  // Ranks that were set up with different graphs or seeds are found out by these.
  const auto settings = [](train::Graph kind, std::uint64_t seed) {
    std::vector<double> values;
    train::KeepsMean(kind, seed).settings([&](const char*, double value) { values.push_back(value); });
    return values;
  };
  CHECK(settings(train::Graph::ring, 1) == settings(train::Graph::ring, 2));
  CHECK(settings(train::Graph::ring, 1) != settings(train::Graph::torus, 1));
  CHECK(settings(train::Graph::random_matching, 1) != settings(train::Graph::random_matching, 2));
}

TEST_CASE("skewed labels are dealt out evenly and once") {
  // 10 labels, in an order that has nothing to do with them, and not alike in number.
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < 6007; ++i) labels.push_back(i * i * 7 % 23 % 10);
  for (const int ranks : {1, 4, 7}) {
    for (const double alpha : {1e-6, 0.1, 1.0, 1e6}) {
      CAPTURE(ranks);
      CAPTURE(alpha);
      const std::vector<std::int64_t> dealt = train::deal_skewed(labels, ranks, alpha, 3);
      CHECK(dealt.size() ==
            labels.size() / static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks));
      std::vector<std::int64_t> sorted = dealt;
      std::sort(sorted.begin(), sorted.end());
      CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
      CHECK(sorted.front() >= 0);
      CHECK(sorted.back() < static_cast<std::int64_t>(labels.size()));
      CHECK(dealt == train::deal_skewed(labels, ranks, alpha, 3));
      if (ranks > 1) CHECK(dealt != train::deal_skewed(labels, ranks, alpha, 4));
    }
  }
}

TEST_CASE("mixtures of labels are Dirichlet's") {
  // The first rank of 20 can't take more than half of a label, so nothing bends its mixture.
  constexpr std::size_t share = 60;
  constexpr int ranks = 20;
  constexpr int seeds = 400;
  std::vector<std::int64_t> labels(share * ranks);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int64_t>(i % 10);
  for (const double alpha : {0.01, 0.1, 1.0, 10.0, 1e6}) {
    CAPTURE(alpha);
    std::array<double, 10> mean{};
    double squares = 0, fourth = 0;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const std::vector<std::int64_t> dealt = train::deal_skewed(labels, ranks, alpha, seed);
      std::array<double, 10> shares{};
      for (std::size_t k = 0; k < share; ++k)
        shares[static_cast<std::size_t>(labels[static_cast<std::size_t>(dealt[k])])] += 1.0 / share;
      double square = 0;
      for (std::size_t c = 0; c < 10; ++c) {
        square += shares[c] * shares[c];
        mean[c] += shares[c] / seeds;
      }
      squares += square / seeds;
      fourth += square * square / seeds;
    }
    // E sum p^2 = (alpha + 1) / (10 alpha + 1) of the mixture, and a sample of `share` adds a spread of its own.
    const double mixture = (alpha + 1) / (10 * alpha + 1);
    const double expected = 1.0 / share + (1 - 1.0 / share) * mixture;
    // Four standard errors, of which the variance of a single label's share is known, too.
    const double error = std::sqrt((fourth - squares * squares) / seeds);
    CHECK(std::abs(squares - expected) < 4 * error);
    const double of_one = std::sqrt((expected - 0.1) / 10 / seeds);
    for (const double one : mean) CHECK(std::abs(one - 0.1) < 4 * of_one);
  }
}

TEST_CASE("small alphas give ranks few labels, large ones all alike") {
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < 60000; ++i) labels.push_back((i * 7919 + i / 13) % 10);
  // How many labels make up nine tenths of a rank's share, mean over the ranks.
  const auto labels_needed = [&](double alpha) {
    constexpr int ranks = 8;
    const std::vector<std::int64_t> dealt = train::deal_skewed(labels, ranks, alpha, 1);
    double needed = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::array<int, 10> counts{};
      for (std::size_t k = 0; k < 7500; ++k)
        ++counts[static_cast<std::size_t>(labels[static_cast<std::size_t>(dealt[rank * 7500 + k])])];
      std::sort(counts.rbegin(), counts.rend());
      int sum = 0;
      for (const int count_ : counts) {
        needed += sum < 6750 ? 1.0 / ranks : 0;
        sum += count_;
      }
      CHECK(sum == 7500);
    }
    return needed;
  };
  // Labels are not alike in number, and with a large alpha every rank has them as the whole set has.
  const std::vector<std::int64_t> even = train::deal_skewed(labels, 8, 1e6, 1);
  for (std::size_t rank = 0; rank < 8; ++rank)
    for (std::int64_t label = 0; label < 10; ++label) {
      const auto begin = even.begin() + static_cast<std::ptrdiff_t>(rank * 7500);
      const auto mine = std::count_if(begin, begin + 7500, [&](std::int64_t picture) {
        return labels[static_cast<std::size_t>(picture)] == label;
      });
      // Up to 8 draws of 7500 lie between the two, of which the deviation is 73.
      CHECK(std::abs(mine - std::count(labels.begin(), labels.end(), label) / 8) < 4 * 73);
    }
  const double few = labels_needed(0.1), some = labels_needed(1), all = labels_needed(1000);
  CHECK(few < 3.5);
  CHECK(some > few + 1);
  CHECK(all > 8.9);
}

TEST_CASE("whatever is wrong on the command line is one clear line") {
  CHECK(contains(refusal({"--optimizers", "adam,lion"}),
                 "'lion' is not one of adam, one-bit-adam, zero-one-adam, momentum-sgd"));
  CHECK(contains(refusal({"--optimizers", "adam,"}), "'' is not one of"));
  CHECK(contains(refusal({"--optimizers", "adma"}), "; did you mean adam?"));
  CHECK(contains(refusal({"--optimizers", "onebit-adam"}), "; did you mean one-bit-adam?"));
  CHECK(contains(refusal({"--optimizers", "lion"}), "; did you mean dion?"));
  CHECK_FALSE(contains(refusal({"--optimizers", "transformer"}), "did you mean"));
  CHECK_FALSE(contains(refusal({"--optimizers", "adam,"}), "did you mean"));
  CHECK(contains(refusal({"--optimizers", "adam,adam"}), "named twice"));
  CHECK(contains(refusal({"--model", "vgg"}), "'vgg' is not one of mlp, cnn"));
  CHECK(contains(refusal({"--ranks"}), "--ranks: needs a value"));
  CHECK(contains(refusal({"--ranks", "2", "--ranks", "3"}), "more than once"));
  CHECK(contains(refusal({"--rank", "2"}), "unknown argument '--rank'"));
  CHECK(contains(refusal({"stray"}), "unknown argument 'stray'"));
  CHECK(contains(refusal({"--checkpoint-every", "5"}), "needs --checkpoint"));
  for (const char* wrong : {"0", "65", "-1", "2.5", "nan", "two", "99999999999999999999", "3x"}) {
    CAPTURE(wrong);
    CHECK(contains(refusal({"--ranks", wrong}), "whole number from 1 to 64"));
  }
  // The last two are floats, but 5 times the one is not finite to the library, and a 50th of the other is not one.
  for (const char* wrong : {"0", "-1", "nan", "inf", "1e999", "fast", "1e300", "1e-300", "3e18", "1e-44"}) {
    CAPTURE(wrong);
    for (const char* option :
         {"--learning-rate", "--lamb-learning-rate", "--sgd-learning-rate", "--sign-learning-rate",
          "--clip-norm", "--moniqua-bound", "--lattice-step", "--outer-learning-rate"})
      CHECK(refusal({option, wrong}) ==
            std::string(option) + ": '" + wrong + "' is not a number from 1e-30 to 1e18");
  }
  CHECK(contains(refusal({"--weight-decay", "1e39"}), "0 or a number from 1e-30 to 1e18"));
  CHECK(contains(refusal({"--update-clip", "1e39"}), "or inf"));
  CHECK(contains(refusal({"--momentum", "0.99999999"}), "below 1"));
  CHECK(contains(refusal({"--consensus-rate", "1e-46"}), "above 0, to 1"));
  CHECK(parse({"--deadline", "1e39"}).deadline == 1e39);
  for (const char* wrong : {"0", "-1", "nan", "inf"})
    CHECK(contains(refusal({"--deadline", wrong}), "seconds above 0"));
  for (const char* wrong : {"loss.png", "loss", "svg", "loss.svg.gz"})
    CHECK(contains(refusal({"--plot", wrong}), "does not end in .svg"));
  CHECK(parse({"--plot", "a.b/loss.v1.svg"}).plot == "a.b/loss.v1.svg");
  for (const char* wrong : {"0", "-0.1", "1.1", "nan"})
    CHECK(contains(refusal({"--ratio", wrong}), "above 0, to 1"));
  for (const char* wrong : {"-0.1", "1.1", "nan"})
    CHECK(contains(refusal({"--warmup-fraction", wrong}), "0 to 1"));
  CHECK(contains(refusal({"--graph", "line"}), "--graph: 'line' is not one of ring, mesh"));
  CHECK(contains(refusal({"--rate-schedule", "step"}), "is not one of cosine, constant"));
  for (const char* wrong : {"0", "-1", "nan", "1e-7", "1e7", "-inf"})
    CHECK(contains(refusal({"--label-skew", wrong}), "from 0.000001 to 1000000, or inf"));
  CHECK_FALSE(parse({"--label-skew", "inf"}).label_skew.has_value());
  CHECK(contains(refusal({"--label-skew", "1", "--resume", "state", "--elastic"}),
                 "each rank has some of its own"));
  CHECK(refusal({"--elastic"}) == "--elastic needs --resume DIR or auto");
  CHECK(parse({"--resume", "state", "--elastic"}).elastic);
  for (const char* wrong : {"1", "-0.1", "nan"}) CHECK(contains(refusal({"--momentum", wrong}), "below 1"));
  for (const char* wrong : {"0", "1.1", "nan"})
    CHECK(contains(refusal({"--consensus-rate", wrong}), "above 0, to 1"));
  CHECK(contains(refusal({"--average-every", "0"}), "whole number above 0"));
  for (const char* wrong : {"0", "-1", "1.5", "nan"})
    CHECK(contains(refusal({"--optimizers", "local-sgd", "--period", wrong}), "whole number above 0"));
  for (const char* wrong : {"-0.1", "1", "nan"}) {
    CHECK(contains(refusal({"--optimizers", "slowmo", "--outer-momentum", wrong}), "0 to below 1"));
    CHECK(
        contains(refusal({"--optimizers", "overlap-local-sgd", "--anchor-momentum", wrong}), "0 to below 1"));
  }
  for (const char* wrong : {"-0.1", "1.1", "nan"}) {
    CHECK(
        contains(refusal({"--optimizers", "overlap-local-sgd", "--pullback", wrong}), "number from 0 to 1"));
    CHECK(
        contains(refusal({"--optimizers", "post-local-sgd", "--average-until", wrong}), "share from 0 to 1"));
  }
  CHECK(contains(refusal({"--optimizers", "local-sgd", "--inner-buffers", "drop"}),
                 "'drop' is not one of keep, reset, average"));
  for (const char* wrong : {"0", "-1", "1.5", "nan"})
    for (const char* option : {"--variance-updates", "--most-local-steps"})
      CHECK(contains(refusal({option, wrong}), "whole number above 0"));
  for (const char* wrong : {"0", "1.1", "nan"})
    CHECK(contains(refusal({"--local-interval", wrong}), "above 0, to 1"));
  for (const char* wrong : {"0", "nan", "-inf"}) CHECK(contains(refusal({"--update-clip", wrong}), "or inf"));
}

namespace {

std::string help(const char* option, train::Program program = train::Program::train) {
  const TemporaryDirectory directory;
  std::FILE* const out = std::fopen(directory.file("out").c_str(), "w");
  const char* arguments[] = {"train", option};
  CHECK_FALSE(train::parse_options(2, arguments, out, program).has_value());
  std::fclose(out);
  return read(directory.file("out"));
}

}  // namespace

TEST_CASE("the quickstart's trainer takes the last of several values and lists what it has") {
  const auto quickstart = train::Program::quickstart_trainer;
  const train::Options options =
      parse({"--optimizers", "adam,one-bit-adam", "--epochs", "10", "--model", "mlp", "--plot", "a.svg",
             "--epochs", "1", "--model", "cnn", "--optimizers", "momentum-sgd", "--plot", "b.svg"},
            quickstart);
  CHECK(options.optimizers == list({"momentum-sgd"}));
  CHECK(options.epochs == 1);
  CHECK(options.model == "cnn");
  CHECK(options.plot == "b.svg");
  const std::string few = help("--help", quickstart), all = help("--help");
  for (const train::Method& kind : train::methods()) {
    CAPTURE(train::name(kind));
    const std::string row = std::string("\n  ") + train::name(kind) + " ";
    CHECK(contains(few, row) == is(kind, {"adam", "one-bit-adam", "momentum-sgd"}));
    CHECK(contains(all, row));
  }
  for (const char* option : {"--graph ", "--period ", "--local-interval "}) {
    CHECK(contains(all, option));
    CHECK_FALSE(contains(few, option));
  }
  CHECK(contains(few, "--topology "));
}

TEST_CASE("help and version are not errors") {
  for (const char* option : {"--help", "-h", "--version"}) {
    const std::string text = help(option);
    CHECK(contains(text, option[2] == 'v' ? "terse " : "--granularity segment|block|whole"));
    CHECK(text.back() == '\n');
  }
}

TEST_CASE("files and directories are checked before the training") {
  const TemporaryDirectory directory;
  train::Options options;
  options.data = directory.path();
  CHECK_NOTHROW(train::check_files(options));
  const auto refused = [&options](std::string train::Options::*member, const std::string& value) {
    train::Options changed = options;
    changed.*member = value;
    std::string line;
    try {
      train::check_files(changed);
    } catch (const train::input_error& fault) {
      line = fault.what();
    }
    return line;
  };
  CHECK(contains(refused(&train::Options::data, directory.file("none")), "--data: there is no directory"));
  CHECK(
      contains(refused(&train::Options::resume, directory.file("none")), "--resume: there is no directory"));
  CHECK(contains(refused(&train::Options::json, directory.file("none/x.json")),
                 "--json: there is no directory"));
  CHECK(contains(refused(&train::Options::csv, directory.path()), "is a directory"));
  CHECK(refused(&train::Options::csv, directory.file("x.csv")).empty());
  CHECK(refused(&train::Options::checkpoint, directory.file("a/b/c")).empty());
  write(directory.file("file"), "");
  CHECK(contains(refused(&train::Options::checkpoint, directory.file("file")), "is not a directory"));
  CHECK(contains(refused(&train::Options::checkpoint, directory.file("file/a")), "is not a directory"));
  if (geteuid() != 0) {  // root may write anywhere
    std::filesystem::permissions(directory.path(),
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    CHECK(contains(refused(&train::Options::json, directory.file("x.json")), "Permission denied"));
    std::filesystem::permissions(directory.path(), std::filesystem::perms::owner_all);
  }
}

// SPDX-License-Identifier: Apache-2.0
// A boundary of a pipeline that sends changes against copies of examples, beside the same compressor under Residual: a
// micro-batch into a packet and out of it, in yardsticks. All rows have been seen before. Residual's packet is read by
// the simplest of optimizers.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "terse/bench/samples.hpp"
#include "terse/bench/yardstick.hpp"
#include "terse/terse.hpp"

namespace {

using namespace terse;
using Host = executor::host;

struct Shape {
  index_t rows, elements;
  index_t size() const { return rows * elements; }
};

EncodeContext context(std::uint64_t step) {
  return {step, Draw::local(1, 0, step, Purpose::quantization), Draw::shared(1, step, Purpose::selection)};
}

/// A pass that takes turns with others; `passes` of them are timed at once.
struct Line {
  std::function<void()> work;
  std::vector<double> took = {};

  double best() const { return *std::min_element(took.begin(), took.end()); }
};

/// Packets of a turn, so that what is decoded is what was encoded, each once.
class Ring {
 public:
  Ring(index_t bytes, index_t passes) : bytes_(aligned(bytes)), passes_(passes), room_(bytes_ * passes) {}
  std::byte* operator[](std::uint64_t pass) {
    return room_.data() + static_cast<index_t>(pass) % passes_ * bytes_;
  }

 private:
  index_t bytes_, passes_;
  buffer<std::byte> room_;
};

template <class C>
class UnderResidual {
 public:
  UnderResidual(const Shape& shape, index_t passes)
      : layout_(Layout::flat(shape.size())),
        plan_(C{}, layout_, layout_.range(), 1, false),
        codec_(Host{}, C{}, Residual{}, plan_.whole),
        packets_(plan_.whole.bytes, passes),
        inbox_(1),
        samples_(bench::normal_samples(shape.size() + bench::spare)),
        decoded_(shape.size()) {
    codec_.start(1);
  }
  void encode() {
    const bench::Samples message{bench::at_step(samples_, sent_)};
    codec_.measure(plan_.whole, {}, EmptyInbox{}, Message{message, message});
    codec_.encode(plan_.whole, {}, EmptyInbox{}, Message{message, message}, context(sent_), true,
                  packets_[sent_]);
    ++sent_;
  }
  void decode() {
    inbox_.clear();
    inbox_.add(codec_.compressor(), plan_.whole, packets_[read_], context(read_).shared);
    for_each(Host{}, plan_.whole.compressed, HostMask{}, inbox_.compressed(),
             bench::Descend{decoded_.data(), 1e-3F});
    ++read_;
  }

 private:
  Layout layout_;
  Plan plan_;
  Codec<C, Residual, Host> codec_;
  Ring packets_;
  Inbox<C> inbox_;
  const float* samples_;
  buffer<float> decoded_;
  std::uint64_t sent_ = 0, read_ = 0;
};

/// Both sides of a boundary.
template <class C, class Format>
class Boundary {
  using Policy = AcSgd<C, Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<256>>, InMemory<Format>>;

 public:
  Boundary(const Shape& shape, index_t passes)
      : shape_(shape),
        sender_(Host{}, Policy{.capacity = shape.rows}, shape.rows, shape.elements, 1),
        receiver_(Host{}, Policy{.capacity = shape.rows}, shape.rows, shape.elements, 1),
        packets_(sender_.largest_packet(), passes),
        samples_(bench::normal_samples(shape.size() + bench::spare)),
        activations_(shape.size()) {
    for (index_t row = 0; row < shape.rows; ++row) visits_.push_back({shape.rows - 1 - row, true});
    envelope_.open(Host{}, {1, 1, nullptr}, 0);
  }
  void encode() {
    const index_t bytes = sender_.lay_out(visits_);
    sender_.encode(bench::at_step(samples_, sent_), context(sent_), 0, envelope_, packets_[sent_]);
    envelope_.stamp(Host{}, static_cast<std::uint64_t>(bytes), sent_, packets_[sent_]);
    ++sent_;
  }
  void decode() {
    receiver_.lay_out(visits_);
    receiver_.accept(envelope_, packets_[read_], read_, 0);
    receiver_.decode(packets_[read_], context(read_).shared, envelope_, activations_.data());
    ++read_;
  }
  /// Whether both sides' copies are the same.
  bool agree() {
    return sent_ == read_ && std::memcmp(sender_.copies(), receiver_.copies(),
                                         static_cast<std::size_t>(shape_.rows * sender_.row_bytes())) == 0;
  }

 private:
  Shape shape_;
  Activations<Policy, Host> sender_, receiver_;
  Ring packets_;
  Envelope<Host> envelope_;
  const float* samples_;
  buffer<float> activations_;
  std::vector<terse::detail::RowVisit> visits_;
  std::uint64_t sent_ = 0, read_ = 0;
};

/// Has the caches hold something else.
void evict() {
  constexpr index_t floats = index_t{16} << 20;
  bench::scale(bench::playground(floats), floats, -1);
}

template <int Bits, class Format>
void measure(const Shape& shape, int rounds, bool cold) {
  using C = Uniform<Bits, Nearest, Asymmetric, MaxAbs, PerBlock<256>>;
  const index_t passes = cold ? 1 : bench::passes_at_once(shape.size());
  const auto plain = std::make_unique<UnderResidual<C>>(shape, passes);
  const auto boundary = std::make_unique<Boundary<C, Format>>(shape, passes);
  Line encode{[&] { boundary->encode(); }}, decode{[&] { boundary->decode(); }};
  Line encode_residual{[&] { plain->encode(); }}, decode_residual{[&] { plain->decode(); }};
  double unit = std::numeric_limits<double>::infinity();
  // Interleaved, so that a slow moment of the machine hits all alike.
  for (int round = 0; round < rounds; ++round) {
    unit = std::min(unit, bench::yardstick(shape.size()));
    for (Line* line : {&encode_residual, &encode, &decode_residual, &decode}) {
      if (cold) evict();
      line->took.push_back(bench::seconds([&] {
                             for (index_t pass = 0; pass < passes; ++pass) {
                               line->work();
                               benchmark::ClobberMemory();
                             }
                           }) /
                           static_cast<double>(passes));
    }
  }
  // The median over rounds, since the machine's speed drifts.
  const auto times = [&](auto ours, auto theirs) {
    std::vector<double> all;
    for (std::size_t k = 0; k < encode.took.size(); ++k) all.push_back(ours(k) / theirs(k));
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
    return all[all.size() / 2];
  };
  const auto of = [](const Line& line) { return [&line](std::size_t k) { return line.took[k]; }; };
  const auto both = [](const Line& one, const Line& other) {
    return [&one, &other](std::size_t k) { return one.took[k] + other.took[k]; };
  };
  std::printf("| %2lld x %5lld | %d | %-4s | %5.2f | %5.2f | %4.2f | %5.2f | %5.2f | %4.2f | %4.2f |\n",
              static_cast<long long>(shape.rows), static_cast<long long>(shape.elements), Bits,
              RowFormat<Format>::name, encode_residual.best() / unit, encode.best() / unit,
              times(of(encode), of(encode_residual)), decode_residual.best() / unit, decode.best() / unit,
              times(of(decode), of(decode_residual)),
              times(both(encode, decode), both(encode_residual, decode_residual)));
  std::fflush(stdout);
  if (!boundary->agree()) {
    std::fputs("the copies differ\n", stderr);
    std::exit(1);
  }
}

template <int Bits>
void measure(const Shape& shape, int rounds, bool cold, const std::string& format) {
  const auto wanted = [&](const char* name) { return format.empty() || format == name; };
  if (wanted("fp32")) measure<Bits, float>(shape, rounds, cold);
  if (wanted("fp16")) measure<Bits, fp16>(shape, rounds, cold);
  if (wanted("bf16")) measure<Bits, bf16>(shape, rounds, cold);
  if (wanted("int8")) measure<Bits, Int8>(shape, rounds, cold);
}

const char* parse(int argc, char** argv, const char* option, const char* otherwise) {
  for (int k = 1; k + 1 < argc; ++k)
    if (std::strcmp(argv[k], option) == 0) return argv[k + 1];
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) {
    std::puts(
        "bench_boundary [--rows R --elements D (several)] [--rounds N (60)] [--bits 2|4|8 (all)]\n"
        "               [--format fp32|fp16|bf16|int8 (all)] [--caches hot|cold (hot)]\n"
        "Times a boundary's packets of activations on one thread, in yardsticks.");
    return 0;
  }
  const int rounds = std::atoi(parse(argc, argv, "--rounds", "60"));
  const int bits = std::atoi(parse(argc, argv, "--bits", "0"));
  const bool cold = std::strcmp(parse(argc, argv, "--caches", "hot"), "cold") == 0;
  const std::string format = parse(argc, argv, "--format", "");
  std::vector<Shape> shapes = {{8, 1024}, {32, 4096}, {4, 65536}};
  if (const char* rows = parse(argc, argv, "--rows", nullptr))
    shapes = {{std::atoll(rows), std::atoll(parse(argc, argv, "--elements", "4096"))}};
  std::puts(
      "| rows x elements | bits | copies | encode, Residual | boundary | times | decode, Residual | boundary "
      "| times "
      "| both, times |\n|---|---:|---|---:|---:|---:|---:|---:|---:|---:|");
  for (const Shape& shape : shapes) {
    if (bits == 0 || bits == 2) measure<2>(shape, rounds, cold, format);
    if (bits == 0 || bits == 4) measure<4>(shape, rounds, cold, format);
    if (bits == 0 || bits == 8) measure<8>(shape, rounds, cold, format);
  }
}

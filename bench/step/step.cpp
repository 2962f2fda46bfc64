// SPDX-License-Identifier: Apache-2.0
// One compressed step of 1-bit Adam, pass by pass, in yardsticks, beside the same arithmetic in a tensor
// library's order.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "../rules.hpp"
#include "libtorch_step.hpp"
#include "plain_step.hpp"
#include "terse/executor/parallel.hpp"
#include "terse/terse.hpp"

namespace {

using namespace terse;
using Host = executor::host;

const EncodeContext context{1, Draw::shared(0, 1, Purpose::quantization),
                            Draw::shared(0, 1, Purpose::selection)};

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The yardstick: x *= a with explicit vectors, 4 bytes read and 4 written for each element.
void yardstick(float* x, index_t n, float a) {
  using Vector [[gnu::vector_size(32)]] = float;
  auto* vectors = reinterpret_cast<Vector*>(x);
  for (index_t i = 0; i < n / 8; ++i) vectors[i] *= a;
}

/// Plain loops over the arrays of each local pass, which compute next to nothing: the time that memory takes. By all threads of
/// a team.
struct SameStreams {
  using Vector [[gnu::vector_size(64)]] = float;
  Team& team;
  index_t vectors;
  Vector *m, *d, *g, *x, *y;

  SameStreams(Team& team_, index_t n, float* m_, float* d_, float* g_, float* x_, float* y_)
      : team(team_),
        vectors(n / 16),
        m(reinterpret_cast<Vector*>(m_)),
        d(reinterpret_cast<Vector*>(d_)),
        g(reinterpret_cast<Vector*>(g_)),
        x(reinterpret_cast<Vector*>(x_)),
        y(reinterpret_cast<Vector*>(y_)) {}
  template <class Loop>
  void shared(const Loop& loop) const {
    const int parts = 4 * team.size();
    team.run(parts, [&](int k, int) { loop(vectors * k / parts, vectors * (k + 1) / parts); });
  }
  void message() const {
    shared([this](index_t i, index_t end) {
      for (; i < end; ++i) y[i] = 0.3F * (y[i] + m[i] + g[i]);
    });
  }
  void update() const {
    shared([this](index_t i, index_t end) {
      for (; i < end; ++i) {
        m[i] = d[i];
        x[i] -= 1e-6F * d[i];
      }
    });
  }
  /// m by stores around the cache.
  void update_around() const {
#ifdef __SSE2__
    shared([this](index_t i, index_t end) {
      for (; i < end; ++i) {
        const Vector given = d[i];
        __m128 quarters[4];
        std::memcpy(quarters, &given, sizeof given);
        for (int k = 0; k < 4; ++k) _mm_stream_ps(reinterpret_cast<float*>(m + i) + 4 * k, quarters[k]);
        x[i] -= 1e-6F * given;
      }
      _mm_sfence();
    });
#else
    update();
#endif
  }
};

struct Line {
  std::string name;
  std::function<void()> work;
  double best = 1e30;
};

/// The local passes of a step over n elements: a rank's own message, and the update from a packet, as the
/// exchange runs them, without the messages between.
template <class C, Executor E = Host>
class LocalPasses {
 public:
  LocalPasses(const Layout& layout, float* m, float* d, float* g, float* x, const E& executor = {})
      : executor_(executor),
        rates_(layout),
        plan_(C{}, layout, layout.range(), 1, false),
        codec_(executor, C{}, Residual{}, plan_.whole),
        packet_(plan_.whole.bytes),
        inbox_(1),
        update_{bench::rules_of(LocalAverage{}, FrozenVariance{}, x, g, m, d, rates_.table(), &now_)},
        message_{{update_.rules}, {g, &now_}} {
    rates_.set(executor, layout, 1e-3F, 0);
    inbox_.add(C{}, plan_.whole, packet_.data(), context.shared);
  }
  void measure() { codec_.measure(plan_.whole, {}, EmptyInbox{}, message_); }
  void encode() { codec_.encode(plan_.whole, {}, EmptyInbox{}, message_, context, true, packet_.data()); }
  void update() {
    for_each(executor_, plan_.whole.compressed, HostMask{}, inbox_.compressed(),
             detail::Deliver<bench::OneBitUpdate, detail::AsItIs>{update_, 1, {}});
  }

 private:
  E executor_;
  StepScalars now_;
  Rates<E> rates_;
  Plan plan_;
  Codec<C, Residual, E> codec_;
  buffer<std::byte> packet_;
  Inbox<C> inbox_;
  bench::OneBitUpdate update_;
  bench::OneBitMessage message_;
};

/// The owner's passes over its chunk of n / W elements, fed by W packets.
template <class C>
class ServerPasses {
 public:
  ServerPasses(const Layout& layout, int ranks, const float* message)
      : plan_(C{}, layout, layout.range(), 1, false),
        codec_(Host{}, C{}, Residual{}, plan_.whole),
        out_(plan_.whole.bytes),
        inbox_(ranks) {
    for (int k = 0; k < ranks; ++k) {
      buffer<std::byte>& packet = in_.emplace_back(plan_.whole.bytes);
      Codec<C, Residual, Host> rank(Host{}, C{}, Residual{}, plan_.whole);
      const StepScalars now{.gradient_scale = 1.0F / static_cast<float>(k + 1)};
      const ScaledGradient scaled{message, &now};
      rank.measure(plan_.whole, {}, EmptyInbox{}, Message{scaled, scaled});
      rank.encode(plan_.whole, {}, EmptyInbox{}, Message{scaled, scaled}, context, true, packet.data());
    }
    for (const buffer<std::byte>& packet : in_) inbox_.add(C{}, plan_.whole, packet.data(), context.shared);
  }
  void serve() {
    const MeanOf mean{1.0F / static_cast<float>(in_.size())};
    codec_.measure(plan_.whole, {}, inbox_, Message{mean, mean});
    codec_.encode(plan_.whole, {}, inbox_, Message{mean, mean}, context, false, out_.data());
  }

 private:
  Plan plan_;
  Codec<C, Residual, Host> codec_;
  std::vector<buffer<std::byte>> in_;
  buffer<std::byte> out_;
  Inbox<C> inbox_;
};

index_t parse(int argc, char** argv, const char* option, index_t otherwise) {
  for (int k = 1; k + 1 < argc; ++k)
    if (std::strcmp(argv[k], option) == 0) return std::atoll(argv[k + 1]);
  return otherwise;
}
const char* parse_text(int argc, char** argv, const char* option) {
  for (int k = 1; k + 1 < argc; ++k)
    if (std::strcmp(argv[k], option) == 0) return argv[k + 1];
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) {
    std::puts(
        "step [--elements N (64 Mi)] [--rounds R (10)] [--threads T (1)] [--json FILE]\n"
        "Times one compressed step of 1-bit Adam pass by pass, on one thread, in yardsticks. With more "
        "threads\n"
        "the local passes also run by executor::parallel, next to plain loops by as many.");
    return 0;
  }
  const index_t n = parse(argc, argv, "--elements", index_t{64} << 20) / 4096 * 4096;
  const index_t rounds = parse(argc, argv, "--rounds", 10);
  const index_t threads = parse(argc, argv, "--threads", 1);
  constexpr int ranks = 4;
  if (n < 4096 * ranks || rounds < 1 || threads < 1) {
    std::fputs("step: at least 16384 elements, 1 round and 1 thread\n", stderr);
    return 2;
  }

  using Blocks = ScaledSign<RootMeanSquare, PerBlock<4096>>;
  const Layout whole = Layout::flat(n), chunk = Layout::flat(n / ranks);
  buffer<float> m(n), d(n), g(n), x(n), y(n);
  for (index_t i = 0; i < n; ++i) {
    m[i] = static_cast<float>(i % 7) - 3;
    g[i] = static_cast<float>(i % 11) - 5;
    d[i] = 0.1F;
    x[i] = y[i] = static_cast<float>(i % 13);
  }

  std::vector<Line> lines;
  lines.push_back({"yardstick", [&] { yardstick(y.data(), n, 1.0001F); }});
  LocalPasses<Sign> segment(whole, m.data(), d.data(), g.data(), x.data());
  lines.push_back({"momentum + error + scale + bits", [&] { segment.measure(); }});
  lines.push_back({"bits into packets", [&] { segment.encode(); }});
  lines.push_back({"decode + update", [&] { segment.update(); }});
  LocalPasses<Blocks> blocks(whole, m.data(), d.data(), g.data(), x.data());
  lines.push_back({"per block: momentum + error + scale + bits", [&] { blocks.encode(); }});
  lines.push_back({"per block: decode + update", [&] { blocks.update(); }});
  ServerPasses<Sign> server(chunk, ranks, g.data());
  lines.push_back({"owner of n / 4, 4 packets", [&] { server.serve(); }});
  ServerPasses<Blocks> block_server(chunk, ranks, g.data());
  lines.push_back({"per block: owner of n / 4, 4 packets", [&] { block_server.serve(); }});
  bench::PlainStep plain(n, m.data(), d.data(), g.data(), x.data());
  lines.push_back({"plain loops, tensor library's order: local", [&] { plain.local(); }});
  bench::LibtorchStep torch(n, m.data(), d.data(), g.data(), x.data());
  if (torch.available()) lines.push_back({"LibTorch's own calls, one thread: local", [&] { torch.local(); }});

  const std::size_t streams = lines.size();
  Team alone(1);
  const SameStreams same(alone, n, m.data(), d.data(), g.data(), x.data(), y.data());
  const auto add_loops = [&](const SameStreams& by, const std::string& threads_said) {
    lines.push_back({"plain loops, same streams: momentum + error" + threads_said, [&by] { by.message(); }});
    lines.push_back({"plain loops, same streams: update" + threads_said, [&by] { by.update(); }});
    lines.push_back({"... with m stored around the cache" + threads_said, [&by] { by.update_around(); }});
  };
  add_loops(same, "");

  // These passes and loops on all threads.
  const std::size_t shared = lines.size();
  const std::string said = ", " + std::to_string(threads) + " threads";
  std::optional<executor::parallel> team;
  std::optional<SameStreams> same_shared;
  std::optional<LocalPasses<Sign, executor::parallel>> segment_shared;
  std::optional<LocalPasses<Blocks, executor::parallel>> blocks_shared;
  if (threads > 1) {
    team.emplace(static_cast<int>(threads));
    same_shared.emplace(*team->team, n, m.data(), d.data(), g.data(), x.data(), y.data());
    segment_shared.emplace(whole, m.data(), d.data(), g.data(), x.data(), *team);
    blocks_shared.emplace(whole, m.data(), d.data(), g.data(), x.data(), *team);
    add_loops(*same_shared, said);
    lines.push_back({"momentum + error + scale + bits" + said, [&] { segment_shared->measure(); }});
    lines.push_back({"bits into packets" + said, [&] { segment_shared->encode(); }});
    lines.push_back({"decode + update" + said, [&] { segment_shared->update(); }});
    lines.push_back({"per block: momentum + error + scale + bits" + said, [&] { blocks_shared->encode(); }});
    lines.push_back({"per block: decode + update" + said, [&] { blocks_shared->update(); }});
  }

  // Interleaved, so that a slow moment of the machine hits all alike.
  for (index_t round = 0; round < rounds; ++round)
    for (Line& line : lines) line.best = std::min(line.best, seconds(line.work));

  const double unit = lines[0].best;
  std::printf("%lld Mi floats, best of %lld interleaved rounds; a yardstick is %.4f s (%.1f GB/s)\n\n",
              static_cast<long long>(n >> 20), static_cast<long long>(rounds), unit,
              8e-9 * static_cast<double>(n) / unit);
  for (const Line& line : lines) std::printf("%-56s %8.2f yardsticks\n", line.name.c_str(), line.best / unit);
  const double three = (lines[1].best + lines[2].best + lines[3].best) / unit;
  const double two = (lines[4].best + lines[5].best) / unit;
  const double loops = lines[8].best / unit;
  std::printf("\n%-56s %8.2f yardsticks\n%-56s %8.2f yardsticks\n", "three local passes", three,
              "two local passes, per-block scales", two);
  const auto plain_ones = [&](std::initializer_list<std::size_t> which) {
    double sum = 0;
    for (const std::size_t k : which) sum += lines[streams + k].best / unit;
    return sum;
  };
  const double eight = plain_ones({0, 2});
  std::printf("%-56s %8.2f yardsticks\n", "their eight streams by plain loops", eight);
  std::printf("%-56s %8.2f and %.2f times\n", "three and two passes, of the plain loops", three / eight,
              two / eight);
  std::printf("%-56s %8.2f times faster\n", "three passes against plain loops", loops / three);
  std::printf("%-56s %8.2f times faster\n", "two passes against plain loops", loops / two);
  if (torch.available()) {
    std::printf("%-56s %8.2f times faster\n", "three passes against LibTorch", lines[9].best / unit / three);
    std::printf("%-56s %8.2f times faster\n", "two passes against LibTorch", lines[9].best / unit / two);
  }
  if (threads > 1) {
    const auto times_faster = [&](std::initializer_list<std::size_t> one, std::size_t from,
                                  std::initializer_list<std::size_t> all) {
      double before = 0, after = 0;
      for (const std::size_t k : one) before += lines[k].best;
      for (const std::size_t k : all) after += lines[from + k].best;
      return before / after;
    };
    const double plain_eight = times_faster({streams, streams + 2}, shared, {0, 2});
    const double by_segment = times_faster({1, 2, 3}, shared, {3, 4, 5});
    const double by_block = times_faster({4, 5}, shared, {6, 7});
    std::printf("%-56s %8.2f times faster, plain loops %.2f: %.2f of that\n", ("three passes" + said).c_str(),
                by_segment, plain_eight, by_segment / plain_eight);
    std::printf("%-56s %8.2f times faster, plain loops %.2f: %.2f of that\n", ("two passes" + said).c_str(),
                by_block, plain_eight, by_block / plain_eight);
  }
  if (const char* file = parse_text(argc, argv, "--json")) {
    std::ofstream out(file);
    out << "{\"elements\": " << n << ", \"rounds\": " << rounds << ", \"yardstick_seconds\": " << unit
        << ", \"yardsticks\": {";
    for (std::size_t k = 1; k < lines.size(); ++k)
      out << (k > 1 ? ", " : "") << '"' << lines[k].name << "\": " << lines[k].best / unit;
    out << "}}\n";
    if (!out) {
      std::fprintf(stderr, "step: cannot write %s\n", file);
      return 2;
    }
  }
}

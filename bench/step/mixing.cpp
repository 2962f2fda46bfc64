// SPDX-License-Identifier: Apache-2.0
// The local passes of one step of decentralized methods, in yardsticks, each beside a plain loop that reads and writes
// the same arrays and computes nothing to speak of.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "terse/terse.hpp"

namespace {

using namespace terse;
using Host = executor::host;
using Lanes [[gnu::vector_size(32), gnu::may_alias]] = float;

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The yardstick: x *= a, 4 bytes read and 4 written for each element.
void yardstick(float* x, index_t n, float a) {
  auto* vectors = reinterpret_cast<Lanes*>(x);
  for (index_t i = 0; i < n / 8; ++i) vectors[i] *= a;
}

/// The floor: every array of `from` is read, every array of `to` gets half of the sum.
template <int Reads, int Writes>
void stream(const std::vector<const float*>& from, const std::vector<float*>& to, index_t n) {
  const Lanes* reads[Reads];
  Lanes* writes[Writes];
  for (std::size_t k = 0; k < Reads; ++k) reads[k] = reinterpret_cast<const Lanes*>(from[k]);
  for (std::size_t k = 0; k < Writes; ++k) writes[k] = reinterpret_cast<Lanes*>(to[k]);
  for (index_t i = 0; i < n / 8; ++i) {
    Lanes sum = reads[0][i];
    for (int k = 1; k < Reads; ++k) sum += reads[k][i];
    for (int k = 0; k < Writes; ++k) writes[k][i] = sum * 0.1F;
  }
}

struct Line {
  std::string name;
  std::function<void()> work, floor;
  double best = 1e30, best_floor = 1e30;
};

/// A rank's two passes as the exchange runs them, with packets of `Degree` neighbours that are already here.
template <class M, int Degree>
class Passes {
  static constexpr int buffers = static_cast<int>(M::state.size());
  using Rule = decltype(rule_of<float>(std::declval<const M&>()));
  using View = detail::MixingView<Numbers<>, buffers, 0, DecoupledDecay, false>;

 public:
  Passes(const Layout& layout, float* x, const float* g, float* state)
      : n_(layout.size()),
        x_(x),
        state_(state),
        g_(g),
        rates_(layout),
        plan_(Dense{}, layout, layout.range(), 1, false),
        codec_(Host{}, Dense{}, NoErrorFeedback{}, plan_.whole),
        rule_(rule_of<float>(M{})),
        view_{{x}, g, {state}, rates_.table(), &now_, false} {
    rates_.set(Host{}, layout, 1e-6F, 0);
    for (int k = 0; k <= Degree; ++k) {
      packets_.emplace_back(plan_.whole.bytes);
      sources_.push_back({packets_.back().data() + plan_.whole.dense_at, nullptr, 0.1F});
    }
    for (int k = 0; k <= Degree; ++k)
      std::swap(packets_[0], packets_[static_cast<std::size_t>(k)]), outgoing();
  }

  /// x and the gradient, and momentum where z holds it, make the own packet.
  Line sending(const std::string& name, bool reads_state) {
    std::vector<const float*> from{x_, g_};
    if (reads_state) from.push_back(state_);
    return {name + ": outgoing", [this] { outgoing(); },
            [this, from, reads_state] {
              if (reads_state)
                stream<3, 1>(from, {packet(0)}, n_);
              else
                stream<2, 1>(from, {packet(0)}, n_);
            }};
  }
  /// All packets, x, and gradient and momentum where there is any, make x and momentum.
  Line updating(const std::string& name) {
    std::vector<const float*> from;
    for (int k = 0; k <= Degree; ++k) from.push_back(packet(k));
    std::vector<float*> to{x_};
    if (buffers > 0) {
      from.insert(from.end(), {g_, state_});
      to.push_back(state_);
    }
    return {name + ": update", [this] { update(); },
            [this, from, to] { stream<Degree + 1 + 2 * buffers, 1 + buffers>(from, to, n_); }};
  }

 private:
  float* packet(int k) {
    return reinterpret_cast<float*>(packets_[static_cast<std::size_t>(k)].data() + plan_.whole.dense_at);
  }
  void outgoing() {
    const detail::Outgoing<Rule, View, 0> message{rule_, view_};
    const EncodeContext context{1, Draw::shared(0, 1, Purpose::quantization),
                                Draw::shared(0, 1, Purpose::selection)};
    codec_.encode(plan_.whole, {}, EmptyInbox{}, Message{message, message}, context, true,
                  packets_[0].data());
  }
  void update() {
    using Update = detail::Update<Rule, View, 0>;
    for_each(Host{}, plan_.whole.dense, HostMask{},
             Differences<Dense::Code>{{sources_.data(), static_cast<int>(sources_.size()), {}}},
             detail::MixExact<Update>{{rule_, view_}});
  }

  index_t n_;
  float *x_, *state_;
  const float* g_;
  StepScalars now_{.own = {1, 1}};
  Rates<Host> rates_;
  Plan plan_;
  Codec<Dense, NoErrorFeedback, Host> codec_;
  Rule rule_;
  View view_;
  std::vector<buffer<std::byte>> packets_;
  std::vector<Packets<Dense::Code>::Source> sources_;
};

index_t parse(int argc, char** argv, const char* option, index_t otherwise) {
  for (int k = 1; k + 1 < argc; ++k)
    if (std::strcmp(argv[k], option) == 0) return std::atoll(argv[k + 1]);
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) {
    std::puts(
        "mixing [--elements N (16 Mi)] [--rounds R (10)]\n"
        "Times the local passes of decentralized steps with 2 and with 5 neighbours, on one thread, in "
        "yardsticks.");
    return 0;
  }
  const index_t n = parse(argc, argv, "--elements", index_t{16} << 20) / 64 * 64;
  const index_t rounds = parse(argc, argv, "--rounds", 10);
  if (n < 64 || rounds < 1) {
    std::fputs("mixing: at least 64 elements and 1 round\n", stderr);
    return 2;
  }
  const Layout layout = Layout::flat(n);
  buffer<float> x(n), g(n), state(n), y(n);
  for (index_t i = 0; i < n; ++i) {
    x[i] = y[i] = static_cast<float>(i % 13) / 13;
    g[i] = static_cast<float>(i % 11) - 5;
  }

  std::vector<Line> lines;
  Passes<AdaptThenCombine<GradientDirection>, 2> plain(layout, x.data(), g.data(), nullptr);
  Passes<AdaptThenCombine<GradientDirection>, 5> plain_wide(layout, x.data(), g.data(), nullptr);
  Passes<AdaptThenCombine<MomentumDirection>, 2> momentum(layout, x.data(), g.data(), state.data());
  Passes<MixedGradient, 2> decentlam(layout, x.data(), g.data(), state.data());
  Passes<MixedGradient, 5> decentlam_wide(layout, x.data(), g.data(), state.data());
  lines.push_back(plain.sending("DSgd", false));
  lines.push_back(plain.updating("DSgd, 2 neighbours"));
  lines.push_back(plain_wide.updating("DSgd, 5 neighbours"));
  lines.push_back(momentum.sending("DmSgd", true));
  lines.push_back(momentum.updating("DmSgd, 2 neighbours"));
  lines.push_back(decentlam.sending("DecentLaM", false));
  lines.push_back(decentlam.updating("DecentLaM, 2 neighbours"));
  lines.push_back(decentlam_wide.updating("DecentLaM, 5 neighbours"));

  // Interleaved, so that a slow moment of the machine hits all alike.
  double unit = 1e30;
  for (index_t round = 0; round < rounds; ++round) {
    unit = std::min(unit, seconds([&] { yardstick(y.data(), n, 1.0001F); }));
    for (Line& line : lines) {
      line.best = std::min(line.best, seconds(line.work));
      line.best_floor = std::min(line.best_floor, seconds(line.floor));
    }
  }
  std::printf("%.1f Mi floats, best of %lld interleaved rounds; a yardstick is %.4f s (%.1f GB/s)\n\n",
              static_cast<double>(n) / (1 << 20), static_cast<long long>(rounds), unit,
              8e-9 * static_cast<double>(n) / unit);
  std::printf("%-36s %12s %12s %8s\n", "pass", "yardsticks", "plain loop", "ratio");
  for (const Line& line : lines)
    std::printf("%-36s %12.2f %12.2f %8.2f\n", line.name.c_str(), line.best / unit, line.best_floor / unit,
                line.best / line.best_floor);
}

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "low_rank.hpp"
#include "passes.hpp"

// What is timed, and what is written about it. On any executor of the grid kind, so that all but the times can be
// checked where there is no device.

namespace terse::bench::gpu {

/// One subject of a group whose lines take turns. `bytes`: what it has to read and to write at least.
struct Line {
  std::string subject, what;
  double bytes;
  std::function<void()> work;
  std::vector<double> ms{};  ///< of each round, in turn

  double median() const {
    std::vector<double> sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }
};

inline std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

/// Times lines and writes a table and JSON. Clock::time(work) returns the milliseconds of one call.
template <class Clock>
class Report {
 public:
  /// Lines count whose "subject/what" has `only` in it.
  Report(Clock& clock, int warm_up, int rounds, std::string only)
      : clock_(&clock), warm_up_(warm_up), rounds_(rounds), only_(std::move(only)) {}

  /// All lines take turns, so that a slow moment of the device hits all alike. The first is the copy, which all others
  /// are held against.
  void measure(const std::string& group, index_t n, std::vector<Line> lines) {
    const auto skipped = [&](const Line& line) {
      return (line.subject + "/" + line.what).find(only_) == std::string::npos;
    };
    lines.erase(std::remove_if(lines.begin() + 1, lines.end(), skipped), lines.end());
    if (lines.size() == 1) return;
    for (int round = -warm_up_; round < rounds_; ++round)
      for (Line& line : lines) {
        const double ms = clock_->time(line.work);
        if (round >= 0) line.ms.push_back(ms);
      }
    const double copy = lines[0].bytes / lines[0].median();
    for (const Line& line : lines) {
      const auto [least, most] = std::minmax_element(line.ms.begin(), line.ms.end());
      const double ms = line.median(), speed = line.bytes / ms;
      const std::string name = line.subject + (line.what.empty() ? "" : ", " + line.what);
      std::printf("%10lld  %-68s %9.4f ms %8.1f GB/s %6.3f of the copy\n", static_cast<long long>(n),
                  name.c_str(), ms, speed * 1e-6, speed / copy);
      json_ += std::string(json_.empty() ? "" : ",") + "\n  {\"group\": " + quoted(group) +
               ", \"subject\": " + quoted(line.subject) + ", \"what\": " + quoted(line.what) +
               ", \"elements\": " + std::to_string(n) + ", \"bytes\": " + number(line.bytes) +
               ", \"median_ms\": " + number(ms) + ", \"least_ms\": " + number(*least) +
               ", \"most_ms\": " + number(*most) + ", \"rounds\": " + std::to_string(rounds_) +
               ", \"of_copy\": " + number(speed / copy) + ", \"ms\": [";
      for (const double one : line.ms) json_ += number(one) + ", ";
      json_.replace(json_.size() - 2, 2, "]}");  // bench/run compare makes pairs of them
    }
    std::fflush(stdout);
  }

  bool empty() const { return json_.empty(); }
  /// Writes {about, "lines": [...]}; false where that was not possible.
  bool write(const std::string& file, const std::string& about) const {
    std::FILE* const out = std::fopen(file.c_str(), "w");
    if (out == nullptr) return false;
    const bool written = std::fprintf(out, "{%s,\n \"lines\": [%s]}\n", about.c_str(), json_.c_str()) > 0;
    return std::fclose(out) == 0 && written;
  }

 private:
  static std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    return text;
  }

  Clock* clock_;
  int warm_up_, rounds_;
  std::string only_, json_;
};

template <GridExecutor E>
Line copy_line(E ex, const float* from, float* to, index_t n) {
  return {"copy", "", 8 * static_cast<double>(n),
          [=] { ex.move(to, from, static_cast<std::size_t>(n) * sizeof(float)); }};
}

/// 1-bit Adam's passes and Adam's over n elements: docs/performance.md says where the bytes come from. Needs memory for
/// nine floats an element.
template <GridExecutor E, class Clock>
void measure_steps(E ex, Report<Clock>& report, index_t n) {
  Rank<E> rank(ex, n);
  Floats<E> other(n);
  OneBitPasses<Sign, E> segment(ex, rank);
  OneBitPasses<Blocks, E> blocks(ex, rank);
  constexpr int ranks = 4;
  const BitMask<E> everything(rank.layout);
  OwnerPasses<Sign, E> owner(ex, n / ranks, ranks);
  OwnerPasses<Blocks, E> block_owner(ex, n / ranks, ranks);

  const double stream = 4 * static_cast<double>(n), bits = stream / 32, scales = stream / 4096, mask = bits;
  const Range range = rank.layout.range();
  std::vector<Line> lines{copy_line(ex, rank.g.data(), other.data(), n)};
  const auto add = [&](const char* subject, const char* what, double bytes, std::function<void()> work) {
    lines.push_back({subject, what, bytes, std::move(work)});
  };
  add("for_each", "to[i] = from[i]", 2 * stream, [&] {
    for_each(ex, range, CopyOver{rank.g.data(), other.data()});
  });
  add("for_each", "x[i] *= a", 2 * stream, [&] { for_each(ex, range, Stretch{other.data(), 1.0001F}); });
  add("1-bit Adam", "momentum + error + scale + bits", 4 * stream + bits, [&] { segment.measure(); });
  add("1-bit Adam", "bits into packets", 2 * bits, [&] { segment.encode(); });
  add("1-bit Adam", "decode + update", 4 * stream + bits, [&] { segment.update(); });
  add("1-bit Adam", "three local passes", 8 * stream + 4 * bits, [&] { segment.all(); });
  // As after a freeze that has left elements out, though here all take part, so that the times can be compared.
  add("1-bit Adam, masked", "momentum + error + scale + bits", 4 * stream + bits + mask,
      [&] { segment.measure(everything); });
  add("1-bit Adam, masked", "decode + update", 4 * stream + bits + mask, [&] { segment.update(everything); });
  add("1-bit Adam per block", "momentum + error + scale + bits", 4 * stream + bits + scales,
      [&] { blocks.encode(); });
  add("1-bit Adam per block", "decode + update", 4 * stream + bits + scales, [&] { blocks.update(); });
  add("1-bit Adam per block, masked", "momentum + error + scale + bits", 4 * stream + bits + scales + mask,
      [&] { blocks.encode(everything); });
  add("1-bit Adam per block, masked", "decode + update", 4 * stream + bits + scales + mask,
      [&] { blocks.update(everything); });
  add("1-bit Adam per block", "two local passes", 8 * stream + 2 * (bits + scales), [&] { blocks.all(); });
  add("1-bit Adam", "owner of n / 4, 4 packets", stream / 2 + bits + 3 * bits / 4, [&] { owner.serve(); });
  add("1-bit Adam per block", "owner of n / 4, 4 packets", stream / 2 + bits + bits / 4 + scales + scales / 4,
      [&] { block_owner.serve(); });
  add("Adam", "update", 7 * stream, [&] { for_each(ex, range, rank.adam()); });
  report.measure("step", n, std::move(lines));
}

/// Compressors by themselves over n elements, one after the other.
template <GridExecutor E, class Clock>
void measure_compressors(E ex, Report<Clock>& report, index_t n) {
  const Layout layout = Layout::flat(n);
  const double stream = 4 * static_cast<double>(n);
  Floats<E> samples(n), x(n);
  for_each(ex, layout.range(), Noise{samples.data(), Draw::shared(1, 0, Purpose::user)});
  for_each_compressor([&]<class C>(const char* name, C) {
    CompressorPasses<C, Unchecked<NoErrorFeedback>, E> plain(ex, layout, samples.data(), x.data());
    // Units longer than a block are read once for the scale and once for the codes.
    const double codes = static_cast<double>(plain.section_bytes()), passes = C::measured ? 2 : 1;
    std::vector<Line> lines{copy_line(ex, samples.data(), x.data(), n)};
    lines.push_back({name, "encode", passes * stream + codes, [&] { plain.send(); }});
    lines.push_back({name, "accumulate", 2 * stream + codes, [&] { plain.accumulate(); }});
    if constexpr (Traits<C>::tracks) {
      CompressorPasses<C, Residual, E> tracked(ex, layout, samples.data(), x.data());
      lines.push_back(
          {name, "encode with residual",
           detail::CodesWithoutScale<C>::value ? 3 * stream + 3 * codes : (1 + 2 * passes) * stream + codes,
           [&] { tracked.send(); }});
      report.measure("compressor", n, std::move(lines));
    } else {
      report.measure("compressor", n, std::move(lines));
    }
  });
  for_each_sparse([&]<class C>(const char* name, C) {
    CompressorPasses<C, Residual, E> passes(ex, layout, samples.data(), x.data());
    const double section = static_cast<double>(passes.section_bytes());
    std::vector<Line> lines{copy_line(ex, samples.data(), x.data(), n)};
    lines.push_back({name, "encode with residual", 3 * stream + section, [&] { passes.send(); }});
    lines.push_back({name, "accumulate", 2 * stream + section, [&] { passes.accumulate(); }});
    report.measure("compressor", n, std::move(lines));
  });
}

/// What LowRank does with a matrix. Gram-Schmidt is bound by its sums, one after the other, and not by bytes.
template <GridExecutor E, class Clock>
void measure_low_rank(E ex, Report<Clock>& report, index_t rows, index_t columns) {
  LowRankPasses<4, E> passes(ex, rows, columns);
  const index_t n = rows * columns;
  const double stream = 4 * static_cast<double>(n), left = 16 * static_cast<double>(rows);
  const std::string name = "LowRank<4>, " + std::to_string(rows) + " x " + std::to_string(columns);
  Floats<E> from(n), to(n);
  std::vector<Line> lines{copy_line(ex, from.data(), to.data(), n)};
  lines.push_back({name, "M q", stream, [&] { passes.multiply(); }});
  lines.push_back({name, "orthonormalize", 2 * left, [&] { passes.orthonormalize(); }});
  lines.push_back({name, "M^T p", stream, [&] { passes.multiply_transposed(); }});
  lines.push_back({name, "x -= p q^T", 2 * stream, [&] { passes.take_off(); }});
  report.measure("low rank", n, std::move(lines));
}

}  // namespace terse::bench::gpu

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "terse/core/error.hpp"
#include "terse/core/separate.hpp"
#include "terse/error_feedback/compression_report.hpp"

namespace terse {

namespace detail {

/// Sums over a segment's elements.
struct SegmentSums {
  index_t elements = 0;
  double message = 0, carried = 0, both = 0, value = 0, sent = 0, error = 0;

  void add(float wanted, float feedback, float decoded) {
    const auto y = static_cast<double>(wanted), e = static_cast<double>(feedback),
               c = static_cast<double>(decoded);
    const double said = y - e, left = y - c;
    ++elements;
    message += said * said;
    carried += e * e;
    both += said * e;
    value += y * y;
    sent += c * c;
    error += left * left;
  }
  void tell(CompressionReport::Line& line) const {
    if ((line.elements = elements) == 0) return;
    line.message = std::sqrt(message);
    line.carried = std::sqrt(carried);
    line.value = std::sqrt(value);
    line.sent = std::sqrt(sent);
    line.error = std::sqrt(error);
    if (message > 0 && carried > 0) line.cosine = both / (line.message * line.carried);
  }
};

}  // namespace detail

TERSE_CORE void CompressionReport::check(index_t end) const {
  if (std::this_thread::get_id() != thread_)
    throw usage_error(
        "a CompressionReport belongs to one rank: make it on the thread that makes the rank's optimizer");
  if (end > layout_.size())
    throw usage_error("this CompressionReport was made for a layout of " + std::to_string(layout_.size()) +
                      " elements, and the optimizer compresses element " + std::to_string(end - 1) +
                      ": make it with the optimizer's layout");
}

TERSE_CORE std::vector<CompressionReport::Line> CompressionReport::read(view<const float> parameters) {
  if (!parameters.empty() && parameters.size() != layout_.size())
    throw usage_error("this CompressionReport's layout has " + std::to_string(layout_.size()) +
                      " elements, and the parameters " + std::to_string(parameters.size()));
  const std::vector<Segment>& segments = layout_.segments();
  std::array<std::vector<detail::SegmentSums>, 2> sums;  // of messages and of means
  for (auto& each : sums) each.resize(segments.size());
  std::vector<float> value, carried, sent;
  std::erase_if(seen_, [](const auto& seen) { return seen.expired(); });
  for (const auto& weak : seen_) {
    const std::shared_ptr<detail::Sightings> seen = weak.lock();
    seen->take(value, carried, sent);
    const index_t end = seen->begin + static_cast<index_t>(value.size());
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const index_t last = std::min(segments[s].offset + segments[s].count, end);
      for (index_t i = std::max(segments[s].offset, seen->begin); i < last; ++i)
        if (const auto k = static_cast<std::size_t>(i - seen->begin); !std::isnan(value[k]))
          sums[seen->of_means ? 1 : 0][s].add(value[k], carried[k], sent[k]);
    }
  }

  std::vector<Line> lines;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    Line& line = lines.emplace_back();
    line.segment = segments[s].name;
    sums[0][s].tell(line);
    if (parameters.empty() || last_.empty()) continue;
    double square = 0;
    for (index_t i = segments[s].offset; i < segments[s].offset + segments[s].count; ++i) {
      const double moved =
          static_cast<double>(parameters[i]) - static_cast<double>(last_[static_cast<std::size_t>(i)]);
      square += moved * moved;
    }
    line.update = std::sqrt(square);
  }
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (sums[1][s].elements == 0) continue;
    Line& line = lines.emplace_back();
    line.segment = segments[s].name;
    line.of_means = true;
    sums[1][s].tell(line);
  }
  last_.assign(parameters.begin(), parameters.end());
  return lines;
}

TERSE_CORE std::string CompressionReport::json(const std::vector<Line>& lines, std::uint64_t step, int rank) {
  std::string text;
  std::array<char, 64> piece{};
  const auto put = [&](const char* format, auto... values) {
    std::snprintf(piece.data(), piece.size(), format, values...);
    text += piece.data();
  };
  const auto number = [&](const char* name, double value) {
    text += std::string(", \"") + name + "\": ";
    if (std::isnan(value))
      text += "null";
    else
      put("%.9g", value);
  };
  for (const Line& line : lines) {
    put("{\"step\": %llu, \"rank\": %d, \"segment\": \"", static_cast<unsigned long long>(step), rank);
    for (const char letter : line.segment) {
      if (static_cast<unsigned char>(letter) < 0x20) {
        put("\\u%04x", static_cast<unsigned>(letter));
      } else {
        if (letter == '"' || letter == '\\') text += '\\';
        text += letter;
      }
    }
    put("\", \"of_means\": %s, \"elements\": %lld", line.of_means ? "true" : "false",
        static_cast<long long>(line.elements));
    number("message", line.message);
    number("carried", line.carried);
    number("value", line.value);
    number("sent", line.sent);
    number("error", line.error);
    number("cosine", line.cosine);
    number("update", line.update);
    text += "}\n";
  }
  return text;
}

}  // namespace terse

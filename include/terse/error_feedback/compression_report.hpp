// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/core/half.hpp"
#include "terse/core/view.hpp"

namespace terse {

namespace detail {

/// Values that an Observed error feedback has seen, of the elements [begin, begin + value.size()), in any memory.
struct Sightings {
  index_t begin = 0;
  bool of_means = false;

  Sightings(index_t begin_, bool of_means_) : begin(begin_), of_means(of_means_) {}
  virtual ~Sightings() = default;
  /// Moves what was seen into these vectors. Elements that were not compressed since the last call have the value NaN.
  virtual void take(std::vector<float>& value, std::vector<float>& carried, std::vector<float>& sent) = 0;
};
template <class Space>
struct SightingsIn final : Sightings {
  buffer<float, Space> value, carried, sent;

  SightingsIn(index_t begin_, index_t end, bool of_means_)
      : Sightings(begin_, of_means_), value(end - begin_), carried(end - begin_), sent(end - begin_) {
    forget();
  }
  void take(std::vector<float>& values, std::vector<float>& errors, std::vector<float>& decoded) override {
    values.resize(static_cast<std::size_t>(value.size()));
    errors.resize(values.size());
    decoded.resize(values.size());
    download<float, Space>(value.all(), values);
    download<float, Space>(carried.all(), errors);
    download<float, Space>(sent.all(), decoded);
    forget();
  }

 private:
  void forget() {
    const std::vector<float> none(static_cast<std::size_t>(value.size()),
                                  std::numeric_limits<float>::quiet_NaN());
    upload<float, Space>(none, value.all());
  }
};

}  // namespace detail

template <class F>
struct Observed;

/// Norms of one rank's messages, errors and updates, by segment, as an Observed error feedback has seen them. Make the report on the
/// thread of its rank, before the optimizer; it serves one optimizer. docs/compression-report.md shows healthy and sick runs.
///
///     terse::CompressionReport report(layout);
///     terse::Optimizer optimizer{Recipe{.error_feedback = {{}, &report}}, transport, layout};
///     ...
///     optimizer.step(parameters, gradients);
///     if (step % 100 == 0) file << terse::CompressionReport::json(report.read(parameters), step, rank);
class CompressionReport {
  static constexpr double none = std::numeric_limits<double>::quiet_NaN();

 public:
  /// Euclidean norms over a segment's compressed elements, of the last step in which they were compressed since the report was read
  /// before. NaN if there was no such step. A Ring's value is the partial sum that the rank passes on.
  struct Line {
    std::string segment;
    bool of_means = false;  ///< the chunk owner's second compression, of the mean of all messages
    index_t elements = 0;   ///< compressed elements on this rank
    double message = none;  ///< of value - carried: the message as the recipe makes it
    double carried = none;  ///< of the error feedback's part of the value
    double value = none;    ///< of y, the value to send
    double sent = none;     ///< of C(y), as receivers decode it
    double error = none;    ///< of y - C(y)
    double cosine = none;   ///< of the angle between carried and message; NaN if one of them is 0
    double update =
        none;  ///< of the parameters' change since the last reading, in the whole segment; not in lines of means
  };

  /// A report on segments of the layout with which the optimizer will be made.
  explicit CompressionReport(Layout layout) : layout_(std::move(layout)) {}

  /// Returns a line for each segment and one for each segment whose mean this rank has compressed again. Sums are in double and in the
  /// arena's order. Call it between steps, after all steps or some. Costs a few passes over n, and memory for the parameters; waits
  /// for a device. Without parameters there are no updates. Throws usage_error for a view of the wrong size.
  std::vector<Line> read(view<const float> parameters = {});
  /// Does so for parameters on a device or in 16 bits.
  template <class P, class Space>
  std::vector<Line> read(view<P, Space> parameters) {
    std::vector<std::remove_const_t<P>> here(static_cast<std::size_t>(parameters.size()));
    download<std::remove_const_t<P>, Space>(parameters, here);
    std::vector<float> wide(here.size());
    for (std::size_t i = 0; i < here.size(); ++i) wide[i] = widened(here[i]);
    return read(view<const float>(wide));
  }

  /// Returns JSON, one object and line for each line of the report, with null for NaN.
  static std::string json(const std::vector<Line>& lines, std::uint64_t step, int rank);

 private:
  template <class F>
  friend struct Observed;
  template <class Space>
  std::shared_ptr<detail::SightingsIn<Space>> watch(index_t begin, index_t end, bool of_means) {
    check(end);
    auto seen = std::make_shared<detail::SightingsIn<Space>>(begin, end, of_means);
    seen_.push_back(seen);
    return seen;
  }
  /// Checks that the caller is on this report's thread, and that the layout has elements up to `end`.
  void check(index_t end) const;

  Layout layout_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::vector<std::weak_ptr<detail::Sightings>> seen_;  // owned by the states of error feedbacks
  std::vector<float> last_;                             // parameters
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/error_feedback/compression_report.ipp"
#endif

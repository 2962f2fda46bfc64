// SPDX-License-Identifier: Apache-2.0

// An error feedback of one's own: what a compressor lost comes back with the next message, but no more than `most` of an
// element at a time, so that the memory of one enormous gradient is short. Its laws, and a training with a bit an element.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "terse/laws/error_feedback.hpp"
#include "terse/terse.hpp"

struct Limited {
  static constexpr bool corrects = true;     // errors come back, so that biased compressors converge
  static constexpr bool accumulates = true;  // and add up, so that the compressor must track

  float most = 10;

  void check() const {
    if (!(most > 0)) throw terse::usage_error("Limited's most must be above 0, not " + std::to_string(most));
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("most", static_cast<double>(most));
  }

  template <terse::Executor E>
  struct State {
    terse::buffer<float, typename E::memory> error;  // holds y between the two passes
    terse::index_t begin;
    float most;

    State(const Limited& policy, terse::index_t begin_, terse::index_t end)
        : error(end - begin_), begin(begin_), most(policy.most) {}

    struct View {
      static constexpr bool commits_zero = true;  // commit(i, keep, y, 0) keeps y, which is there already
      float* y;
      terse::index_t begin;
      float most;
      float compensate(terse::index_t i, float message) const {
        return message + std::clamp(load(i), -most, most);
      }
      float load(terse::index_t i) const { return y[i - begin]; }
      void store(terse::index_t i, float value) const { y[i - begin] = value; }
      void commit(terse::index_t i, bool keep, float value, float decoded) const {
        store(i, terse::keep_if(keep, value - decoded));
      }
      const float* at(terse::index_t i) const { return y + (i - begin); }  // for sparse compressors
    };
    View view() { return {error.data(), begin, most}; }

    template <class Visit>
    void walk(Visit&& visit) {
      visit("error", error.all(), begin);
    }
  };
};

int main() {
  try {
    const terse::laws::Report report = terse::laws::check_error_feedback<Limited>();
    std::fputs(report.text().c_str(), stdout);

    double farthest = 0;
    terse::ThreadGroup(3).run([&](terse::Threads& transport) {
      const terse::Layout layout = terse::Layout::flat(10'000);
      std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size());
      using Method = terse::ErrorFeedbackSgd<terse::ScaledSign<terse::MeanAbs>, Limited>;
      terse::Optimizer optimizer{Method{.learning_rate = 0.05F, .error_feedback = {.most = 3}}, transport,
                                 layout};
      for (int step = 1; step <= 600; ++step) {
        for (std::size_t i = 0; i < x.size(); ++i) g[i] = x[i] - static_cast<float>(transport.rank());
        if (step > 300) optimizer.learning_rate(optimizer.learning_rate() * 0.98F);
        optimizer.step(x, g);
      }
      if (transport.rank() != 0) return;
      for (std::size_t i = 0; i < 10'000; ++i)
        farthest = std::max(farthest, std::abs(static_cast<double>(x[i]) - 1));
    });
    std::printf("\nAll parameters are within %.4f of the optimum, 1\n", farthest);
    return report && farthest < 0.05 ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
  }
  return EXIT_FAILURE;
}

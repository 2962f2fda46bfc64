// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "gradient_averaging.hpp"

// Oracles of decentralized SGD with compressed packets: all ranks in one thread, in double, with the public copies of
// all ranks side by side. They share nothing with the library but `Layout`.
//
// State is public: a test sets it to what the library holds before a step and compares after it, so that rounding does
// not add up. A method reads compressed segments by `Reading`, and the others as they are, at consensus rate 1.

namespace terse::reference {

using Arenas = std::vector<Arena<double>>;
/// W, row by row.
using Rows = std::vector<std::vector<double>>;

/// What everybody reads of `values`, which `rank` sends as vector `which`; only compressed segments count.
using Reading = std::function<Arena<double>(std::size_t rank, int which, const Arena<double>& values)>;

/// Rank i hears rank i + o with weights[o - 1], modulo the number of ranks: doubly stochastic, not symmetric.
inline Rows circulant(std::size_t ranks, const std::vector<double>& weights) {
  Rows rows(ranks, std::vector<double>(ranks));
  for (std::size_t i = 0; i < ranks; ++i) {
    rows[i][i] = 1;
    for (std::size_t o = 1; o <= weights.size(); ++o) {
      rows[i][i] -= weights[o - 1];
      rows[i][(i + o) % ranks] += weights[o - 1];
    }
  }
  return rows;
}

/// A compressor's model, and where rounding to fp32 may turn its decisions.
class Model {
 public:
  Model(Layout layout, double margin)
      : doubted(at(layout.size())), layout_(std::move(layout)), margin_(margin) {}
  std::vector<char> doubted;

  /// 8 bits: round(128 x / max |x|), at most 127, ties to even.
  Arena<double> nearest8(const Arena<double>& values) {
    return each_segment(values, [&](const Segment& segment, Arena<double>& read) {
      double most = 0;
      in(segment, [&](std::size_t k) { most = std::max(most, std::abs(values[k])); });
      in(segment, [&](std::size_t k) {
        const double t = most > 0 ? values[k] / most * 128 : 0;
        doubt(k, std::abs(std::abs(t - std::floor(t)) - 0.5) < 128 * margin_);
        read[k] = std::min(127.0, std::nearbyint(t)) / 128 * most;
      });
    });
  }
  /// Mean magnitude and sign.
  Arena<double> signs(const Arena<double>& values) {
    return each_segment(values, [&](const Segment& segment, Arena<double>& read) {
      double sum = 0;
      in(segment, [&](std::size_t k) { sum += std::abs(values[k]); });
      const double scale = sum / static_cast<double>(std::max<index_t>(segment.count, 1));
      in(segment, [&](std::size_t k) {
        doubt(k, std::abs(values[k]) < margin_ * scale);
        read[k] = scale * sgn(values[k]);
      });
    });
  }
  /// The largest `ratio` of each segment, rounded up.
  Arena<double> largest(const Arena<double>& values, double ratio) {
    return each_segment(values, [&](const Segment& segment, Arena<double>& read) {
      const std::vector<std::size_t> order = by_magnitude(segment, values);
      const std::size_t count = at(top_count(ratio, segment.count));
      for (std::size_t n = 0; n < count; ++n) read[order[n]] = values[order[n]];
      if (count == order.size()) return;
      const double last = std::abs(values[order[count - 1]]);
      in(segment, [&](std::size_t k) { doubt(k, std::abs(std::abs(values[k]) - last) < margin_ * last); });
      // The last one itself is no close call where no other is.
      const double next = std::abs(values[order[count]]);
      if (last - next >= margin_ * last) doubted[order[count - 1]] = 0;
    });
  }

 private:
  template <class F>
  static void in(const Segment& segment, F f) {
    for (index_t k = segment.offset; k < segment.offset + segment.count; ++k) f(at(k));
  }
  template <class F>
  Arena<double> each_segment(const Arena<double>& values, F f) {
    Arena<double> read(values.size());
    for (const Segment& segment : layout_.segments())
      if (segment.compress && segment.count > 0) f(segment, read);
    return read;
  }
  void doubt(std::size_t k, bool close) {
    if (close) doubted[k] = 1;
  }

  Layout layout_;
  double margin_;
};

/// What the methods have in common. `learning_rate`, `weight_decay` (decoupled) and `consensus_rate` as in the library.
struct CompressedMixing {
  Layout layout;
  Rows weights;
  double learning_rate = 0, weight_decay = 0, consensus_rate = 1;
  Arenas x;  ///< parameters, by rank

  /// sum_j W_ij (v_j - v_i)
  Arenas pull(const Arenas& v) const {
    Arenas result(v.size(), Arena<double>(v[0].size()));
    for (std::size_t i = 0; i < v.size(); ++i)
      for (std::size_t j = 0; j < v.size(); ++j)
        for (std::size_t k = 0; k < v[i].size(); ++k) result[i][k] += weights[i][j] * (v[j][k] - v[i][k]);
    return result;
  }

 protected:
  /// body(i, k, rate, c): for each rank and element, with its learning rate and its consensus rate.
  template <class Body>
  void all(Body body) const {
    for (std::size_t i = 0; i < x.size(); ++i)
      for_each_element(layout, [&](const Segment& segment, std::size_t k) {
        body(i, k, learning_rate * static_cast<double>(segment.learning_rate_scale),
             segment.compress ? consensus_rate : 1.0);
      });
  }
  Arenas zeros() const { return Arenas(x.size(), Arena<double>(at(layout.size()))); }
  /// x after decoupled weight decay.
  Arenas decayed() const {
    Arenas result = x;
    for (Arena<double>& one : result)
      for_each_element(layout, [&](const Segment& segment, std::size_t k) {
        one[k] -= learning_rate * static_cast<double>(segment.learning_rate_scale) * weight_decay *
                  static_cast<double>(segment.weight_decay) * one[k];
      });
    return result;
  }
  Arenas read_all(const Reading& reading, int which, const Arenas& sent) const {
    Arenas result;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      result.push_back(reading(i, which, sent[i]));
      for_each_element(layout, [&](const Segment& segment, std::size_t k) {
        if (!segment.compress) result[i][k] = sent[i][k];
      });
    }
    return result;
  }
  static Arenas minus(const Arenas& a, const Arenas& b) {
    Arenas result = a;
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::size_t k = 0; k < a[i].size(); ++k) result[i][k] -= b[i][k];
    return result;
  }
  static void add(Arenas& a, const Arenas& b) {
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::size_t k = 0; k < a[i].size(); ++k) a[i][k] += b[i][k];
  }
};

/// CHOCO-SGD, mixing with the new copies: m = mu m + g, z = x - gamma m, h += Q(z - h), x = z + c sum_j W_ij (h_j - h_i).
struct Choco : CompressedMixing {
  double momentum = 0;
  Arenas m, h;

  void step(const Arenas& g, const Reading& reading) {
    Arenas z = decayed();
    all([&](std::size_t i, std::size_t k, double rate, double) {
      m[i][k] = momentum * m[i][k] + g[i][k];
      z[i][k] -= rate * m[i][k];
    });
    add(h, read_all(reading, 0, minus(z, h)));
    const Arenas d = pull(h);
    all([&](std::size_t i, std::size_t k, double, double c) { x[i][k] = z[i][k] + c * d[i][k]; });
  }
};

/// DeepSqueeze: v = x - gamma g + e, e = v - Q(v), x = x - gamma g + c sum_j (W_ij - [i = j]) Q(v_j).
struct DeepSqueeze : CompressedMixing {
  Arenas e;

  void step(const Arenas& g, const Reading& reading) {
    Arenas z = decayed();
    all([&](std::size_t i, std::size_t k, double rate, double) { z[i][k] -= rate * g[i][k]; });
    Arenas v = z;
    add(v, e);
    const Arenas read = read_all(reading, 0, v), d = pull(read);
    e = minus(v, read);
    all([&](std::size_t i, std::size_t k, double, double c) { x[i][k] = z[i][k] + c * d[i][k]; });
  }
};

/// DCD-PSGD: y = sum_j W_ij x_j - gamma g, x += Q(y - x), everybody's copy of x_i being x_i.
struct Dcd : CompressedMixing {
  void step(const Arenas& g, const Reading& reading) {
    Arenas y = decayed();
    add(y, pull(x));
    all([&](std::size_t i, std::size_t k, double rate, double) { y[i][k] -= rate * g[i][k]; });
    add(x, read_all(reading, 0, minus(y, x)));
  }
};

/// BEER: V += c sum_j W_ij (G_j - G_i) + g - g', G += Q(V - G), X += c sum_j W_ij (H_j - H_i) - gamma V, H += Q(X - H). The
/// first V is g; the page leaves G at 0 in the first step, here it takes V up at once, so that identity Q and c = 1 give
/// gradient tracking from the start.
struct Beer : CompressedMixing {
  Arenas h, v, copy, last;  // copy: G

  void step(const Arenas& g, const Reading& reading) {
    const Arenas v_pull = pull(copy), x_pull = pull(h);
    Arenas z = decayed();
    all([&](std::size_t i, std::size_t k, double rate, double c) {
      v[i][k] += c * v_pull[i][k] + g[i][k] - last[i][k];
      z[i][k] += c * x_pull[i][k] - rate * v[i][k];
    });
    x = z;
    add(h, read_all(reading, 0, minus(x, h)));
    add(copy, read_all(reading, 1, minus(v, copy)));
    last = g;
  }
};

/// Moniqua: m = mu m + g, x += sum_j W_ij (y_j - y_i) - gamma m, y what everybody reads of x.
struct Moniqua : CompressedMixing {
  double momentum = 0;
  Arenas m;

  void step(const Arenas& g, const Reading& reading) {
    x = decayed();
    const Arenas d = pull(read_all(reading, 0, x));
    all([&](std::size_t i, std::size_t k, double rate, double) {
      m[i][k] = momentum * m[i][k] + g[i][k];
      x[i][k] += d[i][k] - rate * m[i][k];
    });
  }
};

}  // namespace terse::reference

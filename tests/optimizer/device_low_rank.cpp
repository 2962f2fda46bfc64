// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#define TERSE_TEST_RECORDING terse::executor::emulated::Recording
#include "device_low_rank.inc"
#include "terse/laws/device.hpp"

// What a device's own test leaves out: verbs over odd shapes, errors under masks, and states from the host.

namespace {

enum class Kind { ordinary, small, wide, zeros, dependent };

/// Every 5th column is 0 in some, and denormal numbers are in others.
float element(Kind kind, std::uint64_t seed, index_t row, index_t column) {
  const float x = noise(seed, 0, static_cast<std::uint64_t>(row) + 1, column);
  switch (kind) {
    case Kind::small:
      return x * 1e-39F;
    case Kind::wide:
      return std::ldexp(x, static_cast<int>((row * 7 + column * 13) % 90) - 45);
    case Kind::zeros:
      return column % 5 == 2 || row % 3 == 1 ? 0.0F : x;
    case Kind::dependent:
      return noise(seed, 1, 0, row) * noise(seed, 2, 0, column);
    default:
      return x;
  }
}

struct WriteKept {
  float* to;
  TERSE_HD void operator()(const Piece&, index_t i, bool keep, float element) const {
    to[i] = keep_if(keep, element, -3.0F);
  }
};

/// Everything that the verbs of low rank leave, for two matrices of which the first is rows x columns.
template <int R, Executor E>
std::vector<Floats> verbs(Kind kind, MatrixShape shape) {
  using Space = typename E::memory;
  const E ex{};
  Layout layout, lefts, rights;
  std::vector<terse::detail::Factored> matrices;
  for (const MatrixShape& m : {shape, MatrixShape{5, 3}}) {
    matrices.push_back({layout.size(), m, lefts.size(), rights.size()});
    layout.add({std::to_string(layout.size()), {m.rows, m.columns}});
    for (int r = 0; r < R; ++r) {
      lefts.add({std::to_string(lefts.size()), {m.rows}});
      rights.add({std::to_string(rights.size()), {m.columns}});
    }
  }
  Floats m(at(layout.size()), 77), first_right(at(rights.size()));
  for (std::size_t k = 0; k < matrices.size(); ++k) {
    const auto [offset, own, left, right] = matrices[k];
    for (index_t i = 0; i < own.rows * own.columns; ++i)
      m[at(offset + i)] = element(kind, k, i / own.columns, i % own.columns);
    // The first column is left 0, to be drawn.
    for (index_t r = 1; r < R; ++r)
      for (index_t c = 0; c < own.columns; ++c)
        first_right[at(right + r * aligned(own.columns) + c)] = element(kind, k + 9, c, r);
  }
  buffer<terse::detail::Factored, Space> table(2);
  upload(view<const terse::detail::Factored>(matrices), table.all());
  const auto arena = uploaded<E>(m);
  Floats first_left(at(lefts.size()));
  for (std::size_t i = 0; i < first_left.size(); ++i)
    first_left[i] = noise(12, 0, 0, static_cast<index_t>(i));
  auto left = uploaded<E>(first_left), product = uploaded<E>(Floats(m.size(), -7));
  first_right.resize(first_right.size() + 16);
  auto right = uploaded<E>(first_right), next = uploaded<E>(Floats(first_right.size(), 6));
  buffer<std::uint8_t, Space> lost(2 * R);
  Mask<Space> mask;
  const std::vector<std::uint64_t> bits(at(layout.size() / 64), 0xF0F0F0FF0F0F0F0FU);
  buffer<std::uint64_t, Space> words(layout.size() / 64);
  upload(view<const std::uint64_t>(bits), words.all());
  mask.words = words.data();

  std::vector<Floats> seen;
  const auto look = [&](const buffer<float, Space>& part) {
    download(part.all(), view<float>(seen.emplace_back(at(part.size()))));
  };
  prepare_columns<R>(ex, table.all(), right.data(), Draw::shared(3, 0, Purpose::initialization));
  look(right);
  for (const auto& [offset, own, to, from] : matrices)
    if (own.rows < 5000)  // an emulated device takes its time
      multiply<R>(ex, arena.data() + offset, Columns<const float>{right.data() + from, own.columns},
                  Columns<float>{left.data() + to, own.rows});
  look(left);
  orthonormalize<R>(ex, table.all(), left.data(), lost.data());
  look(left);
  std::vector<std::uint8_t> gone(2 * R);
  download(view<const std::uint8_t, Space>(lost.all()), view<std::uint8_t>(gone));
  seen.emplace_back(gone.begin(), gone.end());
  for (const auto& [offset, own, from, to] : matrices)
    multiply_transposed<R>(ex, arena.data() + offset, Columns<const float>{left.data() + from, own.rows},
                           Columns<float>{next.data() + to, own.columns});
  look(next);
  for_each_product<R>(ex, layout.range(), mask, table.all(), left.data(), next.data(),
                      WriteKept{product.data()});
  look(product);
  return seen;
}

template <int R>
void check_verbs(Kind kind, MatrixShape shape) {
  CAPTURE(R);
  CAPTURE(static_cast<int>(kind));
  CAPTURE(shape.rows);
  CAPTURE(shape.columns);
  const auto host = verbs<R, executor::host>(kind, shape), device = verbs<R, Device>(kind, shape);
  REQUIRE(host.size() == device.size());
  for (std::size_t k = 0; k < host.size(); ++k) {
    CAPTURE(k);
    REQUIRE(host[k].size() == device[k].size());
    REQUIRE(std::memcmp(host[k].data(), device[k].data(), 4 * host[k].size()) == 0);
  }
}

}  // namespace

TEST_CASE("products, Gram-Schmidt and columns to start from, around the edges of blocks") {
  for (const Kind kind : {Kind::ordinary, Kind::small, Kind::wide, Kind::zeros, Kind::dependent}) {
    check_verbs<3>(kind, {17, 33});
    check_verbs<3>(kind, {2, 130});
  }
  for (const MatrixShape shape : {MatrixShape{1, 1}, {1, 4099}, {67, 1}, {130, 40}, {9, 4484}, {1100, 12}})
    check_verbs<6>(Kind::ordinary, shape);
  check_verbs<3>(Kind::ordinary, {8100, 1});
  check_verbs<3>(Kind::ordinary, {65537, 1});  // more than a block of threads adds up at once
}

TEST_CASE("errors in fewer bits, under masks and with values that aren't finite") {
  const laws::Report report = laws::check_device<Blocks, Int8Residual>();
  CHECK_MESSAGE(report, report.text());
}

TEST_CASE("states go from the host through a file to a device") {
  const auto folder =
      std::filesystem::temp_directory_path() / ("terse_low_rank_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const auto check = [&](const auto& recipe, const Layout& layout) {
    const auto finish = [&]<Executor E>(E, auto& optimizer, auto& x) {
      optimizer.recipe.learning_rate = 0;  // errors that follow the rate stay as they are
      for (std::uint64_t step = 3; step <= 5; ++step, optimizer.recipe.learning_rate = 0.05F)
        optimizer.step(x.all(), uploaded<E>(gradient(layout, 0, step, 1)).all());
      return everything(optimizer, x);
    };
    ThreadGroup(1).run([&](Threads& transport) {
      ThroughHost<Threads, Device> staged(transport.split(0, 0), Device{});
      Optimizer here{recipe, transport, layout};
      Optimizer there{recipe, staged, layout, {}, Device{}};
      auto x = uploaded<executor::host>(start(layout));
      for (std::uint64_t step = 1; step <= 2; ++step) here.step(x.all(), gradient(layout, 0, step, 1));
      checkpoint::save(folder / "state", here, x.all());
      buffer<float, Device::memory> y(layout.size());
      checkpoint::load(folder / "state", there, y.all());
      CHECK(there.steps() == 2);
      CHECK(everything(there, y) == everything(here, x));
      CHECK(finish(Device{}, there, y) == finish(executor::host{}, here, x));
    });
  };
  check(PowerSgd<2>{}, some_matrices());
  using Sums = StoredResidual<terse::quantizer::UniformLevels<8, Nearest, Symmetric, TwoRootMeanSquares>>;
  check(ErrorFeedbackSgd<Blocks, HeavyBall, ScatterGather, Sums>{.error_feedback = {.follows_rate = true}},
        some_layers());
  std::filesystem::remove_all(folder);
}

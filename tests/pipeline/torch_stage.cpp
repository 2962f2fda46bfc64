// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>
// LibTorch has a CHECK of its own.
#undef CHECK
#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "terse/interop/libtorch_stage.hpp"

// A LibTorch module as a stage: autograd of the undivided model, recomputation, passes in flight, evaluation, errors.
// C++17, as LibTorch's unit is everywhere.

namespace {

using terse::index_t;
using terse::MicroBatch;
using terse::interop::TorchStage;
using terse::interop::TorchStageOptions;
using terse::interop::TorchStageShapes;
using Floats = std::vector<float>;
namespace nn = torch::nn;

constexpr index_t rows = 11, inputs = 6, hidden = 8, classes = 5;

/// What() of the usage_error that `act` throws; empty if it throws none.
template <class Act>
std::string refusal(Act act) {
  try {
    act();
  } catch (const terse::usage_error& fault) {
    return fault.what();
  }
  return {};
}
bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

torch::Tensor mean_cross_entropy(const torch::Tensor& scores, const torch::Tensor& labels) {
  return nn::functional::cross_entropy(scores, labels);
}
torch::Tensor mean_of(const torch::Tensor& output, const torch::Tensor&) { return output.mean(); }

/// Three parts, equal at each call.
std::vector<nn::Sequential> parts(double dropout) {
  torch::manual_seed(3);
  std::vector<nn::Sequential> all{
      nn::Sequential(nn::Linear(inputs, hidden), nn::Tanh(), nn::Dropout(dropout)),
      nn::Sequential(nn::Linear(hidden, hidden), nn::Dropout(dropout), nn::ReLU(),
                     nn::Linear(hidden, hidden)),
      nn::Sequential(nn::Dropout(dropout), nn::Linear(hidden, classes))};
  return all;
}
torch::Tensor pictures() {
  torch::manual_seed(4);
  return torch::randn({rows, inputs});
}
torch::Tensor truth() { return torch::arange(rows, torch::kInt64).remainder(classes); }

std::vector<TorchStage> stages(double dropout, TorchStageOptions options) {
  const std::vector<nn::Sequential> all = parts(dropout);
  std::vector<TorchStage> made;
  options.seed = 0;
  made.emplace_back(all[0], TorchStageShapes{{}, {hidden}}, nullptr, options);
  options.seed = 1;
  made.emplace_back(all[1], TorchStageShapes{{hidden}, {hidden}}, nullptr, options);
  options.seed = 2;
  made.emplace_back(all[2], TorchStageShapes{{hidden}, {}}, mean_cross_entropy, options);
  return made;
}
TorchStageOptions recomputing(bool recompute, bool random = true) {
  TorchStageOptions options;
  options.recompute = recompute;
  options.random = random;
  return options;
}

MicroBatch micro_batch(index_t index, index_t first, index_t count, bool training = true) {
  MicroBatch made;
  made.index = index;
  made.first = first;
  made.rows = count;
  made.weight = static_cast<double>(count) / rows;
  made.training = training;
  return made;
}
/// 4, 4 and 3 rows.
const std::vector<MicroBatch>& micro_batches() {
  static const std::vector<MicroBatch> all{micro_batch(0, 0, 4), micro_batch(1, 4, 4), micro_batch(2, 8, 3)};
  return all;
}

/// A pipeline of copies: passes of one micro-batch run through all stages.
class Line {
 public:
  explicit Line(std::vector<TorchStage>& stages) : stages_(stages), kept_(stages.size()) {
    for (TorchStage& stage : stages_) stage.batch(pictures(), truth());
  }

  double forward(const MicroBatch& m) {
    const float* at = nullptr;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (at != nullptr) {
        Floats& input = slot(s, m);
        input.assign(at, at + m.rows * stages_[s].input_elements());
        at = input.data();
      }
      at = stages_[s].forward(m, at);
    }
    CHECK(at == nullptr);
    return stages_.back().loss(m);
  }
  void backward(const MicroBatch& m) {
    Floats gradient;
    for (std::size_t s = stages_.size(); s-- > 0;) {
      const bool last = s + 1 == stages_.size();
      const float* const back = stages_[s].backward(m, last ? nullptr : gradient.data());
      CHECK((back == nullptr) == (s == 0));
      if (back != nullptr) gradient.assign(back, back + m.rows * stages_[s].input_elements());
      // The input may go once its backward pass is over.
      if (s > 0) slot(s, m).assign(slot(s, m).size(), std::numeric_limits<float>::quiet_NaN());
    }
  }
  /// All stages' gradients, and the loss behind them.
  Floats step(bool one_by_one) {
    for (TorchStage& stage : stages_) stage.zero_gradients();
    double loss = 0;
    for (const MicroBatch& m : micro_batches()) {
      loss += forward(m);
      if (one_by_one) backward(m);
    }
    if (!one_by_one)
      for (const MicroBatch& m : micro_batches()) backward(m);
    Floats all;
    for (TorchStage& stage : stages_) {
      CHECK(stage.in_flight() == 0);
      all.insert(all.end(), stage.gradients(), stage.gradients() + stage.layout().size());
    }
    all.push_back(static_cast<float>(loss));
    return all;
  }

 private:
  Floats& slot(std::size_t s, const MicroBatch& m) {
    if (kept_[s].size() <= static_cast<std::size_t>(m.index))
      kept_[s].resize(static_cast<std::size_t>(m.index) + 1);
    return kept_[s][static_cast<std::size_t>(m.index)];
  }

  std::vector<TorchStage>& stages_;
  std::vector<std::vector<Floats>> kept_;
};

struct Single {
  explicit Single(bool recompute = false)
      : stage(part, {{inputs}, {hidden}}, nullptr, recomputing(recompute)) {}
  nn::Sequential part{nn::Linear(inputs, hidden)};
  TorchStage stage;
  Floats input = Floats(rows * inputs, 0.5F);
  Floats gradient = Floats(rows * hidden, 1.0F);
};

/// Tokens of which a number below 0 is padding, and layers that look at the others alone.
torch::Tensor tokens() {
  torch::Tensor made = torch::arange(rows * inputs, torch::kInt64).remainder(7).view({rows, inputs});
  for (index_t row = 0; row < rows; ++row) made[row].narrow(0, 0, row % inputs).fill_(-1);
  return made;
}
torch::Tensor mask_of(const torch::Tensor& batch_inputs) {
  return batch_inputs.ge(0).to(torch::kFloat32).unsqueeze(2);
}
struct Masked : nn::Module {
  explicit Masked(bool embeds) {
    if (embeds)
      words = register_module("words", nn::Embedding(7, hidden));
    else
      layer = register_module("layer", nn::Linear(hidden, hidden));
  }
  torch::Tensor forward(const torch::Tensor& input, const torch::Tensor& batch_inputs) {
    const torch::Tensor h = words.is_empty() ? layer(input) : words(input.clamp(0));
    // The mean over a row's own tokens reaches all of its positions.
    const torch::Tensor mask = mask_of(batch_inputs);
    return torch::tanh(h + (h * mask).sum(1, true) / mask.sum(1, true));
  }
  nn::Embedding words{nullptr};
  nn::Linear layer{nullptr};
};

}  // namespace

TEST_CASE("stages give the gradients and the loss of the undivided model") {
  // The oracle runs the same micro-batches through the whole, so sums have the same order.
  nn::Sequential whole;
  for (nn::Sequential& part : parts(0))
    for (const nn::AnyModule& layer : *part) whole->push_back(layer);
  terse::interop::FlatModule flat(*whole);
  double loss = 0;
  for (const MicroBatch& m : micro_batches()) {
    const torch::Tensor mean = mean_cross_entropy(whole->forward(pictures().narrow(0, m.first, m.rows)),
                                                  truth().narrow(0, m.first, m.rows));
    (mean * m.weight).backward();
    loss += m.weight * mean.item<double>();
  }

  for (const bool recompute : {false, true})
    for (const bool one_by_one : {false, true}) {
      CAPTURE(recompute);
      CAPTURE(one_by_one);
      std::vector<TorchStage> cut = stages(0, recomputing(recompute));
      Line line(cut);
      Floats got = line.step(one_by_one);
      CHECK(got.back() == static_cast<float>(loss));
      got.pop_back();
      CHECK(got == Floats(flat.gradients(), flat.gradients() + flat.size()));

      double square = 0;
      for (const TorchStage& stage : cut) square += stage.square();
      CHECK(square ==
            doctest::Approx(torch::from_blob(flat.gradients(), {flat.size()}).square().sum().item<double>()));
    }

  // Micro-batches add up to the batch's mean.
  const double batch = mean_cross_entropy(whole->forward(pictures()), truth()).item<double>();
  CHECK(loss == doctest::Approx(batch).epsilon(1e-6));
}

TEST_CASE("the batch's inputs reach every stage whose forward takes two tensors") {
  const auto begin = [] {
    torch::manual_seed(5);
    return std::tuple(std::make_shared<Masked>(true), nn::Sequential(nn::Linear(hidden, hidden)),
                      std::make_shared<Masked>(false), nn::Linear(hidden, classes));
  };
  const auto scores_of = [](nn::Linear head, const torch::Tensor& h, const torch::Tensor& batch_inputs) {
    return head((h * mask_of(batch_inputs)).sum(1));
  };
  auto [first, between, second, head] = begin();
  std::vector<terse::interop::FlatModule> expected;
  for (nn::Module* module : std::initializer_list<nn::Module*>{first.get(), &*between, second.get(), &*head})
    expected.emplace_back(*module);
  torch::Tensor all;
  for (const MicroBatch& m : micro_batches()) {
    const torch::Tensor asked = tokens().narrow(0, m.first, m.rows);
    const torch::Tensor h = second->forward(between->forward(first->forward(asked, asked)), asked);
    const torch::Tensor mean =
        mean_cross_entropy(scores_of(head, h, asked), truth().narrow(0, m.first, m.rows)) * m.weight;
    all = all.defined() ? all + mean : mean;
    mean.backward();
  }

  for (const bool recompute : {false, true})
    for (const bool one_by_one : {false, true}) {
      CAPTURE(recompute);
      CAPTURE(one_by_one);
      auto [words, plain, masked, last] = begin();
      nn::Linear scores = last;
      std::vector<TorchStage> cut;
      const TorchStageShapes middle{{inputs, hidden}, {inputs, hidden}};
      cut.emplace_back(words, TorchStageShapes{{}, middle.output}, nullptr, recomputing(recompute));
      cut.emplace_back(plain, middle, nullptr, recomputing(recompute));
      cut.emplace_back(masked, middle, nullptr, recomputing(recompute));
      cut.emplace_back(
          *last,
          [scores, scores_of](const torch::Tensor& h, const torch::Tensor& batch_inputs) {
            return scores_of(scores, h, batch_inputs);
          },
          TorchStageShapes{middle.input, {}}, mean_cross_entropy, recomputing(recompute));
      Line line(cut);
      for (TorchStage& stage : cut) stage.batch(tokens(), truth());
      const Floats got = line.step(one_by_one);
      CHECK(got.back() == doctest::Approx(all.item<double>()).epsilon(1e-6));
      for (std::size_t s = 0; s < cut.size(); ++s) {
        INFO("stage " << s);
        REQUIRE(cut[s].layout().size() == expected[s].size());
        CHECK(Floats(cut[s].gradients(), cut[s].gradients() + expected[s].size()) ==
              Floats(expected[s].gradients(), expected[s].gradients() + expected[s].size()));
      }
      double loss = 0;
      for (MicroBatch m : micro_batches()) {
        m.training = false;
        loss += line.forward(m);
      }
      CHECK(loss == doctest::Approx(all.item<double>()).epsilon(1e-6));
    }

  // A stage between the first and the last knows its batch, too.
  TorchStage stage(std::make_shared<Masked>(false), {{inputs, hidden}, {inputs, hidden}});
  const Floats floats(rows * inputs * hidden, 0.5F);
  const MicroBatch m = micro_batch(0, 0, 4);
  const std::string missing = refusal([&] { stage.forward(m, floats.data()); });
  CHECK(says(missing, "reads inputs runs before its first batch(...)"));
  CHECK(says(missing, "each stage that reads them needs every step's batch"));
  CHECK(says(refusal([&] { stage.batch({}, truth()); }), "without inputs"));
  stage.batch(tokens().narrow(0, 0, 7), {});
  CHECK(says(refusal([&] { stage.forward(m, floats.data()); }),
             "has 7 rows of inputs, but the pipeline runs 11"));
  // A batch that comes between the passes is the next step's.
  stage.batch(tokens(), {});
  stage.forward(m, floats.data());
  stage.batch(tokens().narrow(0, 0, 4), {});
  CHECK(stage.backward(m, floats.data()) != nullptr);
  // The batch is everyone's: no stage may change it.
  nn::Linear layer(hidden, hidden);
  TorchStage changing(*layer,
                      [&](const torch::Tensor& h, const torch::Tensor& batch_inputs) {
                        const_cast<torch::Tensor&>(batch_inputs).clamp_(0);
                        return layer(h);
                      },
                      {{inputs, hidden}, {inputs, hidden}});
  changing.batch(tokens(), {});
  CHECK(says(refusal([&] { changing.forward(m, floats.data()); }), "in place"));
  // A second parameter with a default does not count.
  struct Optional : nn::Module {
    torch::Tensor forward(const torch::Tensor& input, const torch::Tensor& other = {}) {
      CHECK_FALSE(other.defined());
      return input * 2;
    }
  };
  TorchStage optional(std::make_shared<Optional>(), {{inputs, hidden}, {inputs, hidden}});
  CHECK(optional.forward(m, floats.data())[0] == 1.0F);
  CHECK(says(refusal([&] {
               TorchStage(*layer, nullptr, {{hidden}, {hidden}});
             }),
             "needs a forward function"));
}

TEST_CASE("one stage is first and last") {
  nn::Sequential part = parts(0)[0];
  part->push_back(nn::Linear(hidden, classes));
  TorchStage stage(part, {}, mean_cross_entropy);
  CHECK(stage.input_elements() == 0);
  CHECK(stage.output_elements() == 0);
  stage.batch(pictures(), truth());
  MicroBatch m = micro_batch(0, 0, rows);
  CHECK(stage.forward(m, nullptr) == nullptr);
  CHECK(stage.backward(m, nullptr) == nullptr);
  CHECK(stage.loss(m) > 0);
  CHECK(stage.square() > 0);
}

TEST_CASE(
    "draws are the stage's own: the same bits with recomputation, under all schedules, beside other "
    "threads") {
  torch::manual_seed(77);
  const torch::Tensor process = torch::rand({3});
  torch::manual_seed(77);
  std::vector<TorchStage> plain = stages(0.5, recomputing(false));
  torch::manual_seed(77);
  Line first_line(plain);
  torch::manual_seed(77);
  const Floats expected = first_line.step(false);
  CHECK(torch::equal(torch::rand({3}), process));  // as if no stage had drawn
  CHECK(plain[0].draws() == 3);
  const Floats second_step = first_line.step(false);
  CHECK(second_step != expected);

  for (const bool recompute : {false, true})
    for (const bool one_by_one : {false, true}) {
      std::vector<TorchStage> cut = stages(0.5, recomputing(recompute));
      Line line(cut);
      torch::rand({5});
      CHECK(line.step(one_by_one) == expected);
      CHECK(line.step(one_by_one) == second_step);
      for (TorchStage& stage : cut) stage.set_draws(0);
      CHECK(line.step(one_by_one) == expected);
    }

  std::vector<std::vector<TorchStage>> made;
  std::vector<Floats> got(4);
  for (std::size_t k = 0; k < got.size(); ++k) made.push_back(stages(0.5, recomputing(k % 2 == 0)));
  // pictures() seeds the process's generator, which threads must not do to each other.
  std::vector<Line> lines;
  for (auto& cut : made) lines.emplace_back(cut);
  std::vector<std::thread> threads;
  for (std::size_t k = 0; k < got.size(); ++k)
    threads.emplace_back([&, k] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        for (TorchStage& stage : made[k]) stage.set_draws(0);
        got[k] = lines[k].step(k < 2);
        if (got[k] != expected) break;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const Floats& one : got) CHECK(one == expected);
}

TEST_CASE("nothing of a micro-batch is kept after its backward pass, and with recompute no graph before it") {
  for (const bool recompute : {false, true}) {
    CAPTURE(recompute);
    nn::Linear layer(inputs, hidden);
    std::weak_ptr<torch::autograd::Node> graph;
    std::vector<bool> graphs;
    TorchStage stage(
        *layer,
        [&](const torch::Tensor& input) {
          torch::Tensor output = layer(input);
          graphs.push_back(output.requires_grad());
          if (output.requires_grad()) graph = output.grad_fn();
          return output;
        },
        {{inputs}, {hidden}}, nullptr, recomputing(recompute));
    const Floats input(rows * inputs, 0.5F), gradient(rows * hidden, 1.0F);
    stage.forward(micro_batch(0, 0, 4), input.data());
    CHECK(graph.expired() == recompute);
    CHECK(stage.in_flight() == 1);
    stage.backward(micro_batch(0, 0, 4), gradient.data());
    CHECK(graphs == (recompute ? std::vector<bool>{false, true} : std::vector<bool>{true}));
    CHECK(graph.expired());
    CHECK(stage.in_flight() == 0);

    stage.forward(micro_batch(0, 0, 4), input.data());
    stage.forget();
    CHECK(graph.expired());
    stage.forward(micro_batch(0, 0, 4), input.data());
  }
}

TEST_CASE("evaluation: no graph, no dropout, gradients and modes as they were") {
  std::vector<TorchStage> cut = stages(0.5, {});
  Line line(cut);
  const Floats before = line.step(false);
  const std::uint64_t draws = cut[0].draws();
  double loss = 0;
  for (MicroBatch m : micro_batches()) {
    m.training = false;
    loss += line.forward(m);
    CHECK(cut[2].scores().sizes() == torch::IntArrayRef({m.first + m.rows, classes}));
    CHECK_FALSE(cut[2].scores().requires_grad());
  }
  CHECK_FALSE(cut[1].scores().defined());
  CHECK(cut[0].draws() == draws);
  Floats after;
  for (TorchStage& stage : cut) {
    CHECK(stage.in_flight() == 0);
    after.insert(after.end(), stage.gradients(), stage.gradients() + stage.layout().size());
  }
  after.push_back(before.back());
  CHECK(after == before);

  std::vector<nn::Sequential> all = parts(0.5);
  torch::Tensor h = pictures();
  for (nn::Sequential& part : all) {
    part->eval();
    h = part->forward(h);
  }
  CHECK(loss == doctest::Approx(mean_cross_entropy(h, truth()).item<double>()).epsilon(1e-6));
  // Scores are the whole batch's, of the latest evaluation alone, until a training pass.
  CHECK(torch::allclose(cut[2].scores(), h));
  MicroBatch again = micro_batches()[0];
  again.training = false;
  line.forward(again);
  CHECK(torch::allclose(cut[2].scores(), h.narrow(0, 0, again.rows)));
  line.forward(micro_batches()[0]);
  CHECK_FALSE(cut[2].scores().defined());
  for (TorchStage& stage : cut) stage.forget();
  CHECK(refusal([&] { cut[0].backward(micro_batch(0, 0, 4), before.data()); }) != "");

  // A frozen normalization stays frozen, also in training; what trains, trains on.
  nn::BatchNorm1d frozen(hidden);
  nn::Sequential part(nn::Linear(inputs, hidden), frozen, nn::BatchNorm1d(hidden));
  frozen->eval();
  TorchStage stage(part, {{inputs}, {hidden}});
  const Floats input(rows * inputs, 0.5F);
  const torch::Tensor statistics = part->named_buffers()["2.running_mean"];
  stage.forward(micro_batch(0, 0, rows, false), input.data());
  CHECK_FALSE(frozen->is_training());
  CHECK(part->is_training());
  CHECK(part[2]->is_training());
  CHECK(torch::equal(statistics, torch::zeros({hidden})));
  stage.forward(micro_batch(0, 0, rows), input.data());
  CHECK_FALSE(torch::equal(statistics, torch::zeros({hidden})));
  CHECK(torch::equal(frozen->running_mean, torch::zeros({hidden})));
}

TEST_CASE("what is returned is contiguous and nobody else's memory") {
  SUBCASE("a stage that only gives its input another shape") {
    nn::Sequential part{nn::Flatten()};
    TorchStage stage(part, {{2, 3}, {6}});
    CHECK(stage.input_elements() == 6);
    CHECK(stage.layout().size() == 0);
    Floats input(4 * 6, 1), gradient(4 * 6, 2);
    const MicroBatch m = micro_batch(0, 0, 4);
    const float* const output = stage.forward(m, input.data());
    const float* const back = stage.backward(m, gradient.data());
    input.assign(input.size(), 7);
    gradient.assign(gradient.size(), 7);
    CHECK(Floats(output, output + 24) == Floats(24, 1));
    CHECK(Floats(back, back + 24) == Floats(24, 2));
  }
  SUBCASE("scores that are a stage's input, whose place is used again, and scores of one number") {
    for (const bool one_number : {false, true}) {
      nn::Sequential empty;
      TorchStage stage(
          *empty,
          [&](const torch::Tensor& input) {
            return one_number ? input.sum() : input.view({-1, 6});
          },
          {{2, 3}, {}}, mean_of);
      stage.batch({}, truth());
      Floats place(4 * 6);
      for (MicroBatch m : micro_batches()) {
        m.training = false;
        place.assign(place.size(), static_cast<float>(m.index));
        stage.forward(m, place.data());
      }
      const torch::Tensor scores = stage.scores();
      REQUIRE(scores.size(0) == (one_number ? 3 : rows));
      CHECK(scores[0].sum().item<float>() == 0);
      CHECK(scores[1].sum().item<float>() == (one_number ? 24.0F : 0.0F));
      CHECK(scores[scores.size(0) - 1].sum().item<float>() == (one_number ? 36.0F : 12.0F));
    }
  }
  SUBCASE("a stage that turns") {
    nn::Sequential empty;
    TorchStage stage(*empty, [](const torch::Tensor& input) { return input.transpose(1, 2); },
                     {{2, 3}, {3, 2}});
    const Floats input{0, 1, 2, 3, 4, 5}, turned{0, 3, 1, 4, 2, 5};
    const MicroBatch m = micro_batch(0, 0, 1);
    const float* const output = stage.forward(m, input.data());
    CHECK(Floats(output, output + 6) == turned);
    const float* const back = stage.backward(m, turned.data());
    CHECK(Floats(back, back + 6) == input);
  }
  SUBCASE(
      "an output outlives its micro-batch's backward pass, and so does an input's gradient the next forward "
      "pass") {
    Single one;
    const MicroBatch m = micro_batch(0, 0, rows);
    const float* const output = one.stage.forward(m, one.input.data());
    const Floats copy(output, output + rows * hidden);
    const float* const back = one.stage.backward(m, one.gradient.data());
    const Floats gradient(back, back + rows * inputs);
    CHECK(Floats(output, output + rows * hidden) == copy);
    one.stage.forward(m, one.input.data());
    CHECK(Floats(back, back + rows * inputs) == gradient);
  }
}

TEST_CASE("whole numbers as inputs; a first stage without anything to learn") {
  nn::Embedding words(7, hidden);
  nn::Sequential part(words);
  TorchStage stage(part, {{}, {3, hidden}});
  CHECK(stage.output_elements() == 3 * hidden);
  stage.batch(torch::arange(rows * 3, torch::kInt64).remainder(7).view({rows, 3}), {});
  const MicroBatch m = micro_batch(0, 0, rows);
  stage.forward(m, nullptr);
  const Floats gradient(rows * 3 * hidden, 1.0F);
  stage.backward(m, gradient.data());
  CHECK(stage.square() > 0);

  words->weight.requires_grad_(false);
  TorchStage frozen(part, {{}, {3, hidden}});
  CHECK(frozen.layout().size() == 0);

  nn::Sequential fixed(nn::Linear(inputs, hidden));
  for (torch::Tensor& parameter : fixed->parameters()) parameter.set_requires_grad(false);
  TorchStage still(fixed, {{}, {hidden}});
  still.batch(pictures(), {});
  still.forward(m, nullptr);
  CHECK(still.backward(m, gradient.data()) == nullptr);
}

TEST_CASE("an outer guard against gradients doesn't reach a stage") {
  for (const bool recompute : {false, true}) {
    Single one(recompute);
    const torch::NoGradGuard guard;
    const MicroBatch m = micro_batch(0, 0, rows);
    one.stage.forward(m, one.input.data());
    CHECK(one.stage.backward(m, one.gradient.data()) != nullptr);
    CHECK(one.stage.square() > 0);
  }
}

TEST_CASE("misuse is told in words") {
  const MicroBatch m = micro_batch(0, 0, 4);
  const auto make = [](TorchStageShapes shapes, TorchStage::Loss loss) {
    return refusal([&] { TorchStage(nn::Sequential(nn::Linear(inputs, hidden)), shapes, loss); });
  };
  CHECK(says(make({{inputs}, {}}, nullptr), "the shape of its output or, as the last one, a loss"));
  CHECK(says(make({{inputs}, {hidden}}, mean_of), "both a loss and the shape of an output"));
  CHECK(says(make({{inputs, 0}, {hidden}}, nullptr), "extent 0"));
  CHECK(make({{inputs}, {hidden}}, nullptr).empty());

  std::vector<TorchStage> cut = stages(0, {});
  const Floats floats(rows * hidden, 0.5F);
  SUBCASE("batches") {
    CHECK(says(refusal([&] { cut[0].forward(m, nullptr); }), "reads inputs runs before its first batch"));
    CHECK(
        says(refusal([&] { cut[2].forward(m, floats.data()); }), "reads labels runs before its first batch"));
    CHECK(says(refusal([&] { cut[0].batch({}, truth()); }), "without inputs"));
    CHECK(says(refusal([&] { cut[2].batch(pictures(), {}); }), "without labels"));
    CHECK(refusal([&] { cut[1].batch({}, {}); }).empty());
    CHECK(says(refusal([&] { cut[0].batch(pictures().to(torch::kFloat64), {}); }), "are Double"));
    cut[0].batch(pictures().narrow(0, 0, 7), {});
    CHECK(
        says(refusal([&] { cut[0].forward(m, nullptr); }), "has 7 rows of inputs, but the pipeline runs 11"));
    cut[2].batch({}, torch::cat({truth(), truth()}));
    CHECK(says(refusal([&] { cut[2].forward(m, floats.data()); }),
               "has 22 rows of labels, but the pipeline runs 11"));
    nn::Sequential all(nn::Linear(inputs, classes));
    TorchStage alone(all, {}, mean_cross_entropy);
    CHECK(says(refusal([&] { alone.batch(pictures(), truth().narrow(0, 0, 9)); }),
               "11 rows of inputs, but 9 of labels"));
  }
  SUBCASE("micro-batches and ends") {
    for (TorchStage& stage : cut) stage.batch(pictures(), truth());
    CHECK(says(refusal([&] { cut[1].forward(micro_batch(0, 0, 0), floats.data()); }), "has 0 rows"));
    CHECK(says(refusal([&] { cut[0].forward(micro_batch(0, 8, 4), nullptr); }), "the pipeline runs 11"));
    CHECK(says(refusal([&] { cut[0].forward(m, floats.data()); }), "first stage is given an input"));
    CHECK(says(refusal([&] { cut[1].forward(m, nullptr); }), "given no input"));
    CHECK(says(refusal([&] { cut[1].backward(m, floats.data()); }), "micro-batch 0 has no forward pass"));
    cut[1].forward(m, floats.data());
    CHECK(says(refusal([&] { cut[1].forward(m, floats.data()); }), "twice"));
    CHECK(says(refusal([&] { cut[1].backward(m, nullptr); }), "given no gradients"));
    CHECK(says(refusal([&] { cut[1].backward(micro_batch(0, 0, 3), floats.data()); }),
               "3 rows in the backward"));
    CHECK(
        says(refusal([&] { cut[1].backward(micro_batch(1, 4, 4), floats.data()); }), "micro-batch 1 has no"));
    cut[1].backward(m, floats.data());
    CHECK(says(refusal([&] { cut[1].backward(m, floats.data()); }), "comes twice"));
    CHECK(says(refusal([&] { cut[1].loss(m); }), "no forward pass of a last stage"));
    CHECK(says(refusal([&] { cut[2].loss(m); }), "no forward pass of a last stage"));
    cut[2].forward(m, floats.data());
    CHECK(says(refusal([&] { cut[2].backward(m, floats.data()); }), "which it has not"));
  }
  SUBCASE("modules that don't keep the contract") {
    nn::Linear layer(inputs, hidden);
    const auto run = [&](TorchStage::Forward forward, bool training, TorchStage::Loss loss = nullptr) {
      return refusal([&] {
        TorchStage stage(
            *layer, std::move(forward),
            TorchStageShapes{{inputs}, loss ? std::vector<index_t>{} : std::vector<index_t>{hidden}}, loss);
        stage.batch({}, truth());
        MicroBatch mine = m;
        mine.training = training;
        stage.forward(mine, floats.data());
        if (training) stage.backward(mine, loss ? nullptr : floats.data());
      });
    };
    for (const bool training : {true, false}) {
      CHECK(run([&](const torch::Tensor& x) { return layer(x); }, training).empty());
      CHECK(says(run([&](const torch::Tensor& x) { return layer(x).narrow(1, 0, 7); }, training),
                 "returns [4, 7] for 4 rows, but each was promised to be [8]"));
      CHECK(says(run([&](const torch::Tensor& x) { return layer(x).narrow(0, 0, 3); }, training),
                 "returns [3, 8]"));
      CHECK(says(run([&](const torch::Tensor& x) { return layer(x).to(torch::kFloat64); }, training),
                 "float32"));
      CHECK(says(run([&](const torch::Tensor&) { return torch::Tensor(); }, training), "float32"));
      CHECK(says(run([&](const torch::Tensor& x) { return layer(x); }, training,
                     [](const torch::Tensor& y, const torch::Tensor&) { return y; }),
                 "one number"));
    }
    CHECK(says(run([&](const torch::Tensor& x) { return layer(torch::relu_(const_cast<torch::Tensor&>(x))); },
                   false),
               "in place"));
    CHECK(says(run([&](const torch::Tensor& x) { return layer(x.detach()); }, true), "no gradient reaches"));
    CHECK(says(run([&](const torch::Tensor& x) { return layer(x).detach(); }, true), "no gradient reaches"));
    // The gradient of a parameter that was let go of.
    Single one;
    one.part->zero_grad(true);
    one.stage.forward(m, one.input.data());
    CHECK(says(refusal([&] { one.stage.backward(m, one.gradient.data()); }), "outside of the flat arena"));
    // All of a first stage, of which no gradient is left to compute then.
    nn::Sequential part(nn::Linear(inputs, hidden));
    TorchStage head(part, {{}, {hidden}});
    head.batch(pictures(), truth());
    for (torch::Tensor& parameter : part->parameters()) parameter.requires_grad_(false);
    const Floats gradient(static_cast<std::size_t>(4 * hidden));
    head.forward(m, nullptr);
    CHECK(says(refusal([&] { head.backward(m, gradient.data()); }), "'0.weight' was frozen after"));
  }
}

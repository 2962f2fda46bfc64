// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "late.hpp"
#include "queued.hpp"
#define TERSE_TEST_DEVICE terse::test::Queued
#include "cuda/nccl_pipeline.inc"

// With the stand-in for CUDA and NCCL: order and lengths of messages, and what becomes of a step when a stage is gone.
// Kernels and messages are late, so that whoever doesn't wait for them comes too early. Nothing here says how NCCL
// itself behaves with so many communicators at once, nor how its kernels and a stage's share a GPU.
namespace {

using Seconds = std::chrono::duration<double>;
constexpr std::chrono::milliseconds short_patience = 2s;

/// A stage that does something in the forward pass of a micro-batch.
struct Interrupted : Toy<Device> {
  using Toy::Toy;
  std::function<void(index_t)> act = [](index_t) {};
  const float* forward(const MicroBatch& batch, const float* input) {
    act(batch.index);
    return Toy::forward(batch, input);
  }
};

using Usual = AcSgd<Coarse<4>, Gradients>;
using Pipe = Pipeline<Usual, Nccl, Interrupted, OneForwardOneBackward, Device>;
constexpr index_t elements = 65;

struct Tried {
  Interrupted stage;
  Pipe pipeline;
  Tried(Nccl& transport, const Device& device)
      : stage(device, transport.rank(), transport.size(), elements, 2),
        pipeline(Usual{.capacity = 30}, transport, stage, {.micro_batch = 2}, {}, device) {}
};
const Ids some{1, 2, 3, 4, 5, 6, 7, 8, 9}, others{1, 2, 3, 4, 5, 6, 7, 9, 8};

/// What `act` throws as an E.
template <class E, class Act>
std::string thrown(Act act) {
  try {
    act();
  } catch (const E& failure) {
    return failure.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("kernels wait for messages, and messages for kernels") {
  const Usual policy{.capacity = 30, .audit = false};
  for (const std::pair<int, int>& late_by : {std::pair{100, 0}, std::pair{0, 1000}}) {
    CAPTURE(late_by.first);
    const Late late(late_by.first, late_by.second);
    compare_over_nccl({.stages = 3, .elements = 64, .micro_batch = 1, .epochs = 1}, policy, GPipe{});
    compare_over_nccl({.stages = 4, .elements = 64, .micro_batch = 2, .epochs = 2}, policy,
                      OneForwardOneBackward{});
    // Messages of other lengths each.
    compare_over_nccl({.stages = 3, .elements = 192, .micro_batch = 2, .epochs = 2, .positions = 3}, policy,
                      OneForwardOneBackward{});
  }
}

TEST_CASE("stages that are given other examples, or another number of them, say so before any message") {
  const Late late(0, 0);
  for (const Ids& wrong : {others, Ids{1, 2, 3, 4, 5}, Ids{1, 2, 3, 4, 5, 6, 7, 8, 10}}) {
    std::vector<std::vector<float>> disturbed(3), undisturbed(3);
    for (auto* weights : {&disturbed, &undisturbed})
      on_gpus(3, patience, [&](Nccl& transport, const Device& device) {
        Tried tried(transport, device);
        tried.pipeline.train(some);
        if (weights == &disturbed) {
          CHECK(thrown<wire_error>([&] { tried.pipeline.train(transport.rank() == 2 ? wrong : some); }) ==
                "terse: rank " + std::to_string(transport.rank()) +
                    ", step 2: stages 0 and 2 work on different examples: other ids or lengths, another "
                    "order or number, "
                    "or one that only one of them has seen before. All stages are given the same ids in the "
                    "same order");
          CHECK(thrown<mismatch_error>([&] {
                  if (transport.rank() == 1)
                    tried.pipeline.evaluate(some);
                  else
                    tried.pipeline.train(some);
                })
                    .find(transport.rank() == 1
                              ? "is in Pipeline::train, and this rank in Pipeline::evaluate"
                              : "rank 1 is in Pipeline::evaluate, and this rank in Pipeline::train") !=
                std::string::npos);
        }
        CHECK(!tried.pipeline.torn());
        CHECK(tried.pipeline.examples().size() == 9);
        tried.pipeline.train(others);
        tried.stage.descend(0.5F);
        (*weights)[at(transport.rank())] = tried.stage.weights();
        tried.pipeline.audit();
      });
    CHECK(disturbed == undisturbed);
  }
}

TEST_CASE("a stage that throws in the middle of a step lets the others go") {
  for (const bool told : {false, true}) {
    CAPTURE(told);
    const Late late(0, 0);
    stand_in::remote_errors = told;
    for (const int culprit : {0, 1, 2}) {
      CAPTURE(culprit);
      const auto begin = std::chrono::steady_clock::now();
      on_gpus(3, told ? patience : short_patience, [&](Nccl& transport, const Device& device) {
        {
          Tried tried(transport, device);
          tried.pipeline.train(some);
          if (transport.rank() == culprit)
            tried.stage.act = [](index_t j) {
              if (j == 2) throw std::domain_error("this stage has enough");
            };
          if (transport.rank() == culprit) {
            CHECK(thrown<std::domain_error>([&] { tried.pipeline.train(some); }) == "this stage has enough");
            CHECK(thrown<peer_error>([&] { (void)transport.exchange({}, {}, Phase::agree); }) ==
                  "terse: rank " + std::to_string(culprit) +
                      ": the NCCL communicators of this rank were aborted: a step of the pipeline failed on "
                      "this stage");
          } else {
            const std::string text = thrown<peer_error>([&] { tried.pipeline.train(some); });
            CAPTURE(text);
            CHECK(text.find("terse: rank " + std::to_string(transport.rank()) + ": ") == 0);
            CHECK(text.find(told ? "remote process exited" : "gave up waiting for ") != std::string::npos);
          }
          CHECK(tried.pipeline.torn());
          CHECK_THROWS_AS(tried.pipeline.train(some), const usage_error&);
        }
        drain(device.stream);
      });
      CHECK(Seconds(std::chrono::steady_clock::now() - begin).count() < (told ? 20 : 10));
    }
  }
}

TEST_CASE("whoever waits in vain for a stage in the middle of a step gives up by the deadline") {
  const Late late(0, 0);
  on_gpus(4, short_patience, [&](Nccl& transport, const Device& device) {
    {
      Tried tried(transport, device);
      tried.pipeline.train(some);
      // Stage 2 sleeps over its neighbours' deadlines.
      if (transport.rank() == 2)
        tried.stage.act = [](index_t j) {
          if (j == 2) std::this_thread::sleep_for(3 * short_patience);
        };
      const auto begin = std::chrono::steady_clock::now();
      int blamed = -2;
      std::string text;
      try {
        tried.pipeline.train(some);
      } catch (const peer_error& failure) {
        blamed = failure.culprit();
        text = failure.what();
      }
      CAPTURE(text);
      if (transport.rank() != 2) CHECK(Seconds(std::chrono::steady_clock::now() - begin).count() < 5);
      // Stages wait for each other, and nobody is accused of what another has done.
      CHECK((blamed == -1 || (transport.rank() == 2 && blamed != 2)));
      CHECK(text.find("gave up waiting for ") != std::string::npos);
    }
    drain(device.stream);
  });
}

TEST_CASE("a stage that doesn't come to a step ends the others' wait by the deadline") {
  const Late late(0, 0);
  on_gpus(3, short_patience, [&](Nccl& transport, const Device& device) {
    {
      Tried tried(transport, device);
      tried.pipeline.train(some);
      if (transport.rank() == 1) {
        std::this_thread::sleep_for(2 * short_patience);
        return;
      }
      const auto begin = std::chrono::steady_clock::now();
      CHECK(thrown<peer_error>([&] { tried.pipeline.train(some); }).find("gave up waiting for one or more") !=
            std::string::npos);
      CHECK(Seconds(std::chrono::steady_clock::now() - begin).count() < 4);
    }
    drain(device.stream);
  });
}

TEST_CASE("the executor and the transport work on one stream") {
  on_gpus(1, patience, [&](Nccl& transport, const Device&) {
    const detail::OwnStream other;
    CHECK(thrown<usage_error>([&] { Tried(transport, Device{other.handle()}); }) ==
          "terse: rank 0: the transport works on another CUDA stream than the executor");
  });
}

TEST_CASE("nothing is left behind") {
  CHECK(stand_in::communicators == 0);
  CHECK(stand_in::allocations == 0);
  CHECK(stand_in::streams == 0);
  CHECK(stand_in::events == 0);
}

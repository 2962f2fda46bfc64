// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "device.inc"

// What a device's own test leaves out, since nvcc would take minutes for it: everything else that runs there.

namespace {

template <class Forward, class Format, class First = Dense>
auto remembering(bool audit = false) {
  return AcSgd<Forward, Gradients, InMemory<Format>, First>{.capacity = 30, .audit = audit};
}

}  // namespace

TEST_CASE("changes of other widths, kept in other formats") {
  for (const index_t elements : {64, 65, 256}) {
    compare(remembering<Coarse<2>, float>(), {.elements = elements});
    compare(remembering<CoarseRows<3>, bf16>(), {.elements = elements});
    compare(remembering<Coarse<8>, fp16, Cast<fp16>>(), {.elements = elements});
    compare(remembering<Coarse<4>, Int8>(), {.elements = elements});
  }
  compare(remembering<Coarse<4>, fp16>(), {.elements = 256});
}

TEST_CASE("picked changes") { compare(remembering<TopK<>, float>()); }

TEST_CASE("activations compressed as they are, and gradients to nearest") {
  for (const index_t elements : {64, 65, 256})
    compare(DirectActivations<Coarse<4>, Gradients>{}, {.elements = elements}, OneForwardOneBackward{});
  compare(ExactActivations{}, {.elements = 256});
}

TEST_CASE("activations of 16 bits") {
  compare<bf16>(remembering<Coarse<4>, fp16>());
  compare<fp16>(remembering<Coarse<4>, fp16>(), {.elements = 64});
  compare<bf16>(ExactActivations{});
}

TEST_CASE("examples that a full memory has no room for, and rows of none") {
  for (const bool strangers : {false, true}) {
    AcSgd<Coarse<4>, Gradients> policy{.capacity = 13, .when_full = WhenFull::send_whole, .audit = false};
    const std::vector<Trace> traces = compare(policy, {.strangers = strangers});
    CHECK(traces[0].fresh[4] == (strangers ? 4U : 0U));
    CHECK(traces[0].fresh[5] == (strangers ? 6U : 7U));
  }
}

TEST_CASE("rows with padding, of other lengths at each visit") {
  for (const index_t elements : {195, 256}) {
    const Run run{.elements = elements, .positions = elements == 256 ? 4 : 3};
    compare(remembering<Coarse<4>, fp16>(), run);
    compare(remembering<Coarse<4>, Int8>(), run);
    compare(DirectActivations<Coarse<4>, Gradients>{}, run);
  }
}

TEST_CASE("what is rounded behind a packet waits for the verdict about it") {
  check_other_examples<AcSgd<Coarse<4>, Gradients, InMemory<Int8>>>();
}

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terse/core/packet.hpp"
#include "terse/transport/forwarding.hpp"

// A transport on which one rank fails, at a batch that is counted from the beginning of the job.

namespace faults {

/// What a rank's channels know in common.
struct Ambush {
  std::string what = "none";             ///< throws, killed, stopped, late, header, payload or agreement
  bool armed = false;                    ///< on the victim, until it has happened
  std::uint64_t at = 0;                  ///< the first batch is 0
  std::chrono::milliseconds patience{};  ///< how long `late` is late
  bool quiet = false;                    ///< whether it happens without a word
  std::uint64_t batches = 0;             ///< so far
  std::vector<std::byte> damaged{};      ///< what goes out in the place of a packet
  std::vector<terse::Send> sends{};      ///< of the batch that it goes out in
};

/// Says when, on the machine's clock, to whoever started the job.
inline void say_when() {
  const double now =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  std::fprintf(stderr, "struck at %.6f\n", now);
  std::fflush(stderr);
}

inline void strike(Ambush& ambush) {
  ambush.armed = false;
  if (!ambush.quiet) say_when();
  if (ambush.what == "throws") throw std::runtime_error("out of memory, says the fault");
  if (ambush.what == "killed") std::raise(SIGKILL);
  if (ambush.what == "stopped") std::raise(SIGSTOP);
  if (ambush.what == "late") std::this_thread::sleep_for(ambush.patience);
}

template <terse::Transport Inner>
class Faulty : public terse::Forwarding<Faulty<Inner>, Inner> {
 public:
  Faulty(Inner inner, Ambush& ambush)
      : terse::Forwarding<Faulty, Inner>(std::move(inner)), ambush_(&ambush) {}

  [[nodiscard]] auto exchange(std::span<const terse::Send> sends, std::span<const terse::Receive> receives,
                              terse::Phase phase) {
    // A batch that nobody else takes part in is none.
    if (sends.empty() && receives.empty()) return this->inner_.exchange(sends, receives, phase);
    const bool due = ambush_->batches++ >= ambush_->at && ambush_->armed;
    const bool agreement = ambush_->what == "agreement";
    const bool damages = agreement || ambush_->what == "header" || ambush_->what == "payload";
    if (due && !damages) strike(*ambush_);
    if (due && damages)
      // The next packet of a step that has what is to be damaged, or the next message that is no packet.
      for (const terse::Send& send : sends)
        if (agreement ? phase == terse::Phase::setup || phase == terse::Phase::agree
                      : send.bytes >= least() && phase != terse::Phase::setup)
          return this->inner_.exchange(damage(sends, send), receives, phase);
    return this->inner_.exchange(sends, receives, phase);
  }
  template <terse::Transport Other>
  Faulty<Other> around(Other other) const {
    return Faulty<Other>(std::move(other), *ambush_);
  }

 private:
  static constexpr auto header = static_cast<terse::index_t>(sizeof(terse::PacketHeader));

  terse::index_t least() const { return ambush_->what == "header" ? header : header + 64; }

  /// One bit of one packet is another, as if it had changed on its way.
  const std::vector<terse::Send>& damage(std::span<const terse::Send> sends, const terse::Send& chosen) {
    ambush_->armed = false;
    say_when();
    ambush_->damaged.assign(chosen.data, chosen.data + chosen.bytes);
    // Of a header the step's low byte; of a payload the top bit of an exponent, in what are scales or values; of an agreement what
    // is before its checksum.
    const auto place = ambush_->what == "agreement" ? ambush_->damaged.size() - 5
                       : ambush_->what == "header"  ? offsetof(terse::PacketHeader, step)
                                                    : sizeof(terse::PacketHeader) + 3;
    ambush_->damaged[place] ^= std::byte{0x40};
    ambush_->sends.assign(sends.begin(), sends.end());
    for (terse::Send& send : ambush_->sends)
      if (send.peer == chosen.peer) send.data = ambush_->damaged.data();
    return ambush_->sends;
  }

  Ambush* ambush_;
};

}  // namespace faults

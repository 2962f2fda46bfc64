// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <cstdint>
#include <cstdio>
#include <type_traits>
#include <utility>

#include "terse/transport/call.hpp"
#include "terse/transport/forwarding.hpp"

namespace terse {

namespace detail {

/// Returns the NVTX domain "terse", or nullptr if no tool is attached to the process.
inline nvtxDomainHandle_t nvtx_domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("terse");
  return domain;
}

/// The text and the payload of a range.
class NvtxEvent {
 public:
  NvtxEvent(const char* what, Phase phase, std::uint64_t bytes) {
    const CallName call = Call::current();
    if (call.step > 0)
      std::snprintf(text_, sizeof text_, "%s%s, step %llu", what, name(phase),
                    static_cast<unsigned long long>(call.step));
    else
      std::snprintf(text_, sizeof text_, "%s%s", what, name(phase));
    event_.version = NVTX_VERSION;
    event_.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event_.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event_.message.ascii = text_;
    event_.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    event_.payload.ullValue = bytes;
  }
  NvtxEvent(const NvtxEvent&) = delete;
  NvtxEvent& operator=(const NvtxEvent&) = delete;
  const nvtxEventAttributes_t* attributes() const { return &event_; }

 private:
  char text_[64];
  nvtxEventAttributes_t event_{};
};

/// A range of the calling thread.
class NvtxThreadRange {
 public:
  NvtxThreadRange(const char* what, Phase phase, std::uint64_t bytes) {
    if (nvtx_domain() != nullptr)
      nvtxDomainRangePushEx(nvtx_domain(), NvtxEvent(what, phase, bytes).attributes());
  }
  NvtxThreadRange(const NvtxThreadRange&) = delete;
  NvtxThreadRange& operator=(const NvtxThreadRange&) = delete;
  ~NvtxThreadRange() {
    if (nvtx_domain() != nullptr) nvtxDomainRangePop(nvtx_domain());
  }
};

/// A range of the process, which may end on any thread.
class NvtxProcessRange {
 public:
  NvtxProcessRange(Phase phase, std::uint64_t bytes) : open_(nvtx_domain() != nullptr) {
    if (open_) id_ = nvtxDomainRangeStartEx(nvtx_domain(), NvtxEvent("", phase, bytes).attributes());
  }
  NvtxProcessRange(NvtxProcessRange&& other) noexcept
      : id_(other.id_), open_(std::exchange(other.open_, false)) {}
  NvtxProcessRange& operator=(NvtxProcessRange&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(open_, other.open_);
    return *this;
  }
  ~NvtxProcessRange() { end(); }
  void end() {
    if (std::exchange(open_, false)) nvtxDomainRangeEnd(nvtx_domain(), id_);
  }

 private:
  nvtxRangeId_t id_ = 0;
  bool open_ = false;
};

}  // namespace detail

/// A decorator that shows messages in NVIDIA Nsight Systems, as ranges of NVTX in the domain "terse". Each batch has a range of the
/// process, "reduce, step 12", from its start to its end, with this rank's bytes as payload. The thread has a range during the call that
/// starts a batch, with the same name, which covers the kernels that NCCL launches; and "wait: reduce, step 12" during a wait. Batches
/// outside of steps have no number. Without an attached tool a batch costs a few comparisons.
template <Transport Inner>
class NvtxRanges : public Forwarding<NvtxRanges<Inner>, Inner> {
  using Base = Forwarding<NvtxRanges<Inner>, Inner>;

 public:
  class Ticket {
   public:
    Ticket(TicketOf<Inner> inner, Phase phase, std::uint64_t bytes, detail::NvtxProcessRange range)
        : inner_(std::move(inner)), phase_(phase), bytes_(bytes), range_(std::move(range)) {}
    bool ready() {
      if (!inner_.ready()) return false;
      range_.end();
      return true;
    }
    template <class... Deadline>
    void wait(Deadline... deadline) {
      const detail::NvtxThreadRange range("wait: ", phase_, bytes_);
      inner_.wait(deadline...);
      range_.end();
    }
    /// See KnowsAwaited.
    int awaited() requires KnowsAwaited<TicketOf<Inner>> { return inner_.awaited(); }

   private:
    TicketOf<Inner> inner_;
    Phase phase_;
    std::uint64_t bytes_;
    detail::NvtxProcessRange range_;
  };

  explicit NvtxRanges(Inner inner) : Base(std::move(inner)) {}

  template <class Call>
  auto carry(Phase phase, const Load& load, const Call& call) {
    const detail::NvtxThreadRange range("", phase, load.bytes_sent);
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
    } else {
      detail::NvtxProcessRange batch(phase, load.bytes_sent);
      return Ticket(call(), phase, load.bytes_sent, std::move(batch));
    }
  }
  template <Transport Other>
  NvtxRanges<Other> around(Other other) const {
    return NvtxRanges<Other>(std::move(other));
  }
};

}  // namespace terse

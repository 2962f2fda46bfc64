// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include "terse/pipeline/example_memory.hpp"

namespace terse {

/// Copies of examples in a memory-mapped file, for more copies than RAM holds: the system keeps used rows in RAM and
/// writes the rest to disk. The file is created in `folder` under a unique name, reserves all of its space, and is
/// unlinked at once, so that nothing remains after any end of the program. Rows are used in place, and rows of the next
/// micro-batch are read in advance. On the host alone. The constructor throws terse::error, which names the folder, if
/// the file can't be created or the disk is full.
template <class Format_ = fp16>
struct Mapped {
  using Format = Format_;

  std::string folder = "/var/tmp";  ///< on a local disk; not /tmp, which may be RAM

  void check() const {
    if (folder.empty()) throw usage_error("Mapped needs a folder for its file");
  }

  template <Executor E>
  class State {
    static_assert(std::same_as<typename E::memory, memory::host>,
                  "terse: files are mapped into the host's memory; keep a device's rows InMemory");

   public:
    State(const Mapped& policy, index_t rows, index_t row_bytes)
        : bytes_(static_cast<std::size_t>(rows * row_bytes)),
          row_bytes_(static_cast<std::size_t>(row_bytes)) {
      if (bytes_ == 0) return;
      std::string name = policy.folder + "/terse-examples-XXXXXX";
      const int file = ::mkostemp(name.data(), O_CLOEXEC);
      if (file < 0) fail(policy, "make a file", errno);
      ::unlink(name.c_str());
      int failure;
      do failure = ::posix_fallocate(file, 0, static_cast<off_t>(bytes_));
      while (failure == EINTR);
      void* place = MAP_FAILED;
      if (failure == 0) {
        place = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (place == MAP_FAILED) failure = errno;
      }
      ::close(file);
      if (failure != 0) fail(policy, "take " + std::to_string(bytes_) + " bytes", failure);
      data_ = static_cast<std::byte*>(place);
      // A hint: it is useless to read the next row in advance, since examples are shuffled.
      (void)::madvise(data_, bytes_, MADV_RANDOM);
    }
    State(State&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), row_bytes_(other.row_bytes_) {}
    State& operator=(State&&) = delete;
    ~State() {
      if (data_ != nullptr) ::munmap(data_, bytes_);
    }

    std::byte* data() { return data_; }
    void expect(index_t row) {
      static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
      const std::size_t begin = static_cast<std::size_t>(row) * row_bytes_ / page * page;
      const std::size_t end = static_cast<std::size_t>(row + 1) * row_bytes_;
      (void)::madvise(data_ + begin, end - begin, MADV_WILLNEED);
    }

   private:
    [[noreturn]] static void fail(const Mapped& policy, const std::string& what, int reason) {
      throw error("can't " + what + " for the memory of examples in '" + policy.folder +
                  "': " + std::generic_category().message(reason));
    }

    std::byte* data_ = nullptr;
    std::size_t bytes_, row_bytes_;
  };
};

}  // namespace terse

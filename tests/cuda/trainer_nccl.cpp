// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <link.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "../../tools/train/cuda_nccl.hpp"
#include "late.hpp"
#include "terse/pipeline/nccl_lanes.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/thread.hpp"

// The trainer's way to NCCL, with the stand-in for it.

namespace {

using namespace terse;
constexpr std::chrono::milliseconds patience = std::chrono::seconds(30);

/// body(transport of the host) as a thread for each of `gpus`, which are the ranks' in their order.
template <class Body>
void with_gpus(const std::vector<int>& gpus, Body body) {
  ThreadGroup(static_cast<int>(gpus.size()), patience).run([&](Threads& ranks) {
    detail::check_cuda(cudaSetDevice(gpus[static_cast<std::size_t>(ranks.rank())]), "cudaSetDevice");
    AnyTransport boot(ranks.split(0, ranks.rank()));
    body(boot);
  });
}

std::string path_of_libm() {
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* found) {
        if (std::string(library->dlpi_name).find("libm.so") != std::string::npos)
          *static_cast<std::string*>(found) = library->dlpi_name;
        return 0;
      },
      &path);
  return path;
}

}  // namespace

TEST_CASE("ranks with a GPU each are connected, and what goes over NCCL is counted") {
  const Late late(0, 100);
  with_gpus({0, 1, 2}, [](AnyTransport& boot) {
    CHECK(train::why_no_nccl(boot).empty());
    const detail::OwnStream stream;
    auto [transport, traffic] = train::connect_nccl(boot, stream.handle(), patience);
    CHECK(transport.rank() == boot.rank());
    CHECK(transport.size() == 3);
    CHECK_FALSE(transport.stream() != stream.handle());
    train::DeviceTransport channel = transport.split(0, transport.rank());
    buffer<std::byte, memory::device> out(64), in(64);
    const int next = (boot.rank() + 1) % 3, before = (boot.rank() + 2) % 3;
    const std::array sends{Send{next, out.data(), 64}};
    const std::array receives{Receive{before, in.data(), 64}};
    channel.exchange(sends, receives, Phase::reduce).wait();
    channel.synchronize();
    CHECK(traffic[Phase::reduce].bytes_sent == 64);
    barrier(boot);
  });
}

TEST_CASE("of ranks that share a GPU all are told who does") {
  with_gpus({0, 1, 0}, [](AnyTransport& boot) {
    CHECK(train::why_no_nccl(boot).find("ranks 0 and 2 have the same GPU") == 0);
  });
}

TEST_CASE("a process with two NCCLs is found out by all ranks") {
  CHECK(train::loaded_nccls().empty());
  const std::string libm = path_of_libm();
  REQUIRE_FALSE(libm.empty());
  const auto folder = std::filesystem::temp_directory_path() / ("terse-nccls-" + std::to_string(::getpid()));
  std::vector<void*> handles;
  for (const char* const one : {"one", "other"}) {
    std::filesystem::create_directories(folder / one);
    const auto copy = folder / one / "libnccl.so.2";
    std::filesystem::copy_file(libm, copy);
    handles.push_back(::dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL));
    REQUIRE(handles.back() != nullptr);
    CHECK(train::loaded_nccls().size() == handles.size());
    with_gpus({0, 1}, [&](AnyTransport& boot) {
      CHECK((train::why_no_nccl(boot).find("rank 0 has 2 NCCLs") == 0) == (handles.size() == 2));
    });
  }
  for (void* const handle : handles) ::dlclose(handle);
  std::filesystem::remove_all(folder);
  CHECK(train::loaded_nccls().empty());
}

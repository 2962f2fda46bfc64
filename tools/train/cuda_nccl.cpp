// SPDX-License-Identifier: Apache-2.0
#include "cuda_nccl.hpp"

#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "terse/transport/collectives.hpp"
#include "terse/transport/nccl.hpp"

namespace train {

std::string why_no_nccl(terse::AnyTransport& boot) {
  const std::vector<std::string> loaded = loaded_nccls();
  // What a rank alone knows, all shall.
  const auto most = terse::all_gather(boot, static_cast<std::int64_t>(loaded.size()));
  if (const auto first = std::find_if(most.begin(), most.end(), [](std::int64_t count) { return count > 1; });
      first != most.end())
    return "rank " + std::to_string(first - most.begin()) + " has " + std::to_string(*first) +
           " NCCLs in its process, and which one is called is a matter of order: build the trainer with the "
           "one that "
           "LibTorch brings";
  return terse::Nccl::why_not(boot);
}

std::pair<DeviceTransport, const terse::Traffic&> connect_nccl(terse::AnyTransport& boot, void* stream,
                                                               std::chrono::milliseconds deadline) {
  terse::Metered<terse::Nccl> metered(terse::Nccl::create(boot, static_cast<cudaStream_t>(stream), deadline));
  const terse::Traffic& traffic = metered.traffic();
  return {DeviceTransport(std::move(metered)), traffic};
}

std::vector<std::string> loaded_nccls() {
  std::vector<std::string> found;
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* found_) {
        const std::filesystem::path path(library->dlpi_name);
        if (path.filename().string().starts_with("libnccl.so"))
          static_cast<std::vector<std::string>*>(found_)->push_back(path.string());
        return 0;
      },
      &found);
  return found;
}

}  // namespace train

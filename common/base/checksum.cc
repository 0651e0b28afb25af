#include "common/base/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <thread>

// Debian's library is compiled for SSE2 and has the wider kernels beside it, chosen at run time.
// What has just arrived is still in the cache, where they are three times as fast.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif

namespace baton {

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());  // The header above puts its own in place of it.
}

uint64_t YieldingChecksum(std::span<const std::byte> bytes) {
  constexpr size_t kBlockBytes = 256 << 10;  // Some 20 us; a yield that nobody takes up costs 0.2.
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  while (!bytes.empty()) {
    const std::span<const std::byte> block = bytes.first(std::min(bytes.size(), kBlockBytes));
    XXH3_64bits_update(state.get(), block.data(), block.size());
    bytes = bytes.subspan(block.size());
    std::this_thread::yield();
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace baton

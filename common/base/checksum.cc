#include "common/base/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <thread>

#include "common/base/check.h"

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
  constexpr size_t kBlockBytes = 256 << 10;  // About 20 us; a yield that is not needed costs 0.2.
  RunningChecksum checksum;
  while (!bytes.empty()) {
    const std::span<const std::byte> block = bytes.first(std::min(bytes.size(), kBlockBytes));
    checksum.Add(block);
    bytes = bytes.subspan(block.size());
    std::this_thread::yield();
  }
  return checksum.value();
}

RunningChecksum::RunningChecksum() : state_(XXH3_createState()) {
  BATON_CHECK(state_ != nullptr) << "no memory for a checksum";
  XXH3_64bits_reset(state_.get());
}

void RunningChecksum::Add(std::span<const std::byte> part) {
  XXH3_64bits_update(state_.get(), part.data(), part.size());
}

uint64_t RunningChecksum::value() const { return XXH3_64bits_digest(state_.get()); }

void RunningChecksum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

}  // namespace baton

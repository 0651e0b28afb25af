// XXH3-64 of bytes that lie together, by the widest instructions of this processor: the checksum of
// everything that Baton sends in bulk. Any thread.
#ifndef COMMON_BASE_CHECKSUM_H_
#define COMMON_BASE_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace baton {

uint64_t Checksum(std::span<const std::byte> bytes);

// The same, for a thread whose result nobody waits for yet: now and then it lets others run first.
// A thread that wakes while all cores hash would else wait for its turn, some milliseconds on
// Linux.
uint64_t YieldingChecksum(std::span<const std::byte> bytes);

}  // namespace baton

#endif  // COMMON_BASE_CHECKSUM_H_

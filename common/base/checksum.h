// XXH3-64 by the widest instructions of this processor: the checksum of everything that Baton sends
// in bulk. Any thread.
#ifndef COMMON_BASE_CHECKSUM_H_
#define COMMON_BASE_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace baton {

// The checksum of contiguous bytes.
uint64_t Checksum(std::span<const std::byte> bytes);

// The same, for a thread whose result is not awaited yet: it yields to other threads now and then.
// A thread that wakes while all cores hash would else wait for its turn, some milliseconds on
// Linux.
uint64_t YieldingChecksum(std::span<const std::byte> bytes);

// The checksum of bytes that come in parts: equals Checksum of all parts in order.
class RunningChecksum {
 public:
  RunningChecksum();
  void Add(std::span<const std::byte> part);
  uint64_t value() const;  // For the parts so far.

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  const std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace baton

#endif  // COMMON_BASE_CHECKSUM_H_

// Who speaks: one life of one process, and the version of what it says.
#ifndef COMMON_TYPES_INSTANCE_H_
#define COMMON_TYPES_INSTANCE_H_

#include <compare>
#include <cstdint>
#include <string>

namespace baton {

// Version of all that processes say to one another: proto/ and the data plane's headers. A process
// speaks a range of them, and two of them the newest that both do; workers whose ranges don't meet
// are refused at join. A new version first comes with both in the range, and the old one goes a
// release later, so that a cluster can be upgraded process by process.
inline constexpr uint32_t kOldestProtocolVersion = 2;
inline constexpr uint32_t kProtocolVersion = 4;
static_assert(kOldestProtocolVersion <= kProtocolVersion);
// The first in which Prefill.Start reads fixed_prompt_token_ids.
inline constexpr uint32_t kFixedPromptIdsVersion = 3;
// The first in which a checksum of activations may follow them.
inline constexpr uint32_t kActivationSumsVersion = 4;

// One life of one process: a restart keeps `id` and draws a new `incarnation` (never 0).
struct InstanceRef {
  std::string id;
  uint64_t incarnation = 0;
  auto operator<=>(const InstanceRef&) const = default;
};

}  // namespace baton

#endif  // COMMON_TYPES_INSTANCE_H_

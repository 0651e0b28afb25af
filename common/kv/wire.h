// The headers of the hand-off's messages on the data plane (MessageKind kKvPages and kKvControl).
// Fixed little-endian layouts behind a version byte; the last eight bytes are the XXH3-64 of all
// before, because a flipped bit in a page index would place good bytes wrongly. What is decoded has
// been checked for form: sizes, signs, overflow; whether it is allowed is the lease table's matter.
#ifndef COMMON_KV_WIRE_H_
#define COMMON_KV_WIRE_H_

#include <cstddef>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv/lease_table.h"
#include "common/types/instance.h"

namespace baton {

// Limits of the wire, so that every header fits into the data plane's 512 bytes.
inline constexpr int kMaxWireTopLogprobs = 20;
inline constexpr size_t kMaxInstanceIdBytes = 128;

// A writer's sign of life to one decode service.
struct KvHeartbeat {
  InstanceRef writer;
  auto operator<=>(const KvHeartbeat&) const = default;
};

using KvControl = std::variant<KvCommit, KvHeartbeat, KvReceipt>;

// Encoding breaks an invariant (BATON_CHECK) when a value exceeds the limits above.
std::vector<std::byte> EncodeKvData(const KvDataHeader& header);
std::vector<std::byte> EncodeKvCommit(const KvCommit& commit);
std::vector<std::byte> EncodeKvHeartbeat(const KvHeartbeat& heartbeat);
std::vector<std::byte> EncodeKvReceipt(const KvReceipt& receipt);

// INVALID_ARGUMENT for anything that no encoder makes: wrong length, version, kind or checksum,
// negative or inverted ranges, a NaN log-probability, a malformed instance id.
absl::StatusOr<KvDataHeader> DecodeKvData(std::span<const std::byte> bytes);
absl::StatusOr<KvControl> DecodeKvControl(std::span<const std::byte> bytes);

}  // namespace baton

#endif  // COMMON_KV_WIRE_H_

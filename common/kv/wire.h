// The headers of the hand-off's messages on the data plane (MessageKind kKvPages and kKvControl).
// Fixed little-endian layouts with a version byte. The last eight bytes are the XXH3-64 of all
// before: a flipped bit in a page index would place good bytes wrongly. Decoding checks the form:
// sizes, signs, overflow. The lease table checks whether a message is allowed.
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

// Limits that make every header fit into the data plane's 512 bytes.
inline constexpr int kMaxWireTopLogprobs = 20;
inline constexpr size_t kMaxInstanceIdBytes = 128;

// Says that the sender lives. A writer's, to each decode service: its grants go on. A decode
// service's, once to each writer that it has granted pages: the writer connects back, and its
// heartbeats begin before there is anything to write.
struct KvHeartbeat {
  InstanceRef sender;
  auto operator<=>(const KvHeartbeat&) const = default;
};

using KvControl = std::variant<KvCommit, KvHeartbeat, KvReceipt>;

// A value beyond the limits above is a broken invariant (BATON_CHECK).
std::vector<std::byte> EncodeKvData(const KvDataHeader& header);
std::vector<std::byte> EncodeKvCommit(const KvCommit& commit);
std::vector<std::byte> EncodeKvHeartbeat(const KvHeartbeat& heartbeat);
std::vector<std::byte> EncodeKvReceipt(const KvReceipt& receipt);

// INVALID_ARGUMENT for bytes that no encoder produces: wrong length, version, kind or checksum,
// negative or inverted ranges, a NaN log-probability, a malformed instance id.
absl::StatusOr<KvDataHeader> DecodeKvData(std::span<const std::byte> bytes);
absl::StatusOr<KvControl> DecodeKvControl(std::span<const std::byte> bytes);

}  // namespace baton

#endif  // COMMON_KV_WIRE_H_

// The hand-off's headers go through their real encoding on the simulated way too. What is damaged
// there must not be decoded into anything.
#ifndef TESTS_SIM_OVER_WIRE_H_
#define TESTS_SIM_OVER_WIRE_H_

#include <cstddef>
#include <variant>
#include <vector>

#include "common/kv/wire.h"
#include "tests/sim/world.h"

namespace baton::sim {

inline std::vector<std::byte> EncodeForWire(const KvDataHeader& header) {
  return EncodeKvData(header);
}
inline std::vector<std::byte> EncodeForWire(const KvCommit& commit) {
  return EncodeKvCommit(commit);
}
inline std::vector<std::byte> EncodeForWire(const KvHeartbeat& heartbeat) {
  return EncodeKvHeartbeat(heartbeat);
}
inline std::vector<std::byte> EncodeForWire(const KvReceipt& receipt) {
  return EncodeKvReceipt(receipt);
}

template <typename Message>
void OverWire(World& world, const Message& message) {
  const auto arrives = [](const std::vector<std::byte>& bytes, Message& decoded) {
    if constexpr (std::is_same_v<Message, KvDataHeader>) {
      const absl::StatusOr<KvDataHeader> header = DecodeKvData(bytes);
      if (header.ok()) decoded = *header;
      return header.ok();
    } else {
      const absl::StatusOr<KvControl> control = DecodeKvControl(bytes);
      if (!control.ok() || !std::holds_alternative<Message>(*control)) return false;
      decoded = std::get<Message>(*control);
      return true;
    }
  };
  std::vector<std::byte> bytes = EncodeForWire(message);
  Message decoded;
  if (!arrives(bytes, decoded) || decoded != message) {
    world.Violate("a header of the hand-off is decoded into something else");
  }
  if (!world.random().Chance(0.05)) return;
  bytes[world.random().Below(bytes.size())] ^=
      static_cast<std::byte>(1 + world.random().Below(255));
  if (arrives(bytes, decoded)) world.Violate("a damaged header of the hand-off is decoded");
}

}  // namespace baton::sim

#endif  // TESTS_SIM_OVER_WIRE_H_

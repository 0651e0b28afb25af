// The hand-off's headers go through their real encoding on the simulated way too, which is held
// against an account of its own. What is damaged or makes no sense there must not be decoded into
// anything.
#ifndef TESTS_SIM_OVER_WIRE_H_
#define TESTS_SIM_OVER_WIRE_H_

#include <cstddef>
#include <optional>
#include <variant>
#include <vector>

#include "common/kv/wire.h"
#include "tests/sim/wire_witness.h"
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
std::optional<Message> DecodeFromWire(const std::vector<std::byte>& bytes) {
  if constexpr (std::is_same_v<Message, KvDataHeader>) {
    const absl::StatusOr<KvDataHeader> header = DecodeKvData(bytes);
    if (header.ok()) return *header;
  } else {
    const absl::StatusOr<KvControl> control = DecodeKvControl(bytes);
    if (control.ok() && std::holds_alternative<Message>(*control)) {
      return std::get<Message>(*control);
    }
  }
  return std::nullopt;
}

inline bool IsTaken(const std::vector<std::byte>& bytes) {
  return DecodeKvData(bytes).ok() || DecodeKvControl(bytes).ok();
}

template <typename Message>
void OverWire(World& world, const Message& message) {
  Random& random = world.random();
  const auto passes = [](const Message& whole) {
    const std::vector<std::byte> bytes = EncodeForWire(whole);
    return bytes == ImageOf(whole) && DecodeFromWire<Message>(bytes) == whole;
  };
  if (!passes(message)) {
    world.Violate("a header of the hand-off is encoded otherwise, or decoded into something else");
  }
  if (!random.Chance(0.05)) return;
  if (!passes(AtTheEdge(random, message))) {
    world.Violate("a header of the hand-off that is just allowed does not pass");
  }
  if (IsTaken(Spoiled(random, message))) {
    world.Violate("a header of the hand-off that makes no sense is decoded");
  }
  std::vector<std::byte> bytes = EncodeForWire(message);
  bytes[random.Below(bytes.size())] ^= static_cast<std::byte>(1 + random.Below(255));
  if (IsTaken(bytes)) world.Violate("a damaged header of the hand-off is decoded");
}

}  // namespace baton::sim

#endif  // TESTS_SIM_OVER_WIRE_H_

// Headers of MessageKind::kActivations: a plan's activations on their way to the next stage, and
// the credit that comes back. Little-endian, behind a version byte; the last eight bytes are the
// XXH3-64 of all before.
#ifndef SERVICES_PREFILL_STAGE_ACTIVATION_WIRE_H_
#define SERVICES_PREFILL_STAGE_ACTIVATION_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/kv_layout.h"

namespace baton::prefill {

// A plan's activations are [tokens, hidden_size] of one element type and travel in pieces of this
// size, the last one shorter, so that no message keeps others waiting for long.
inline constexpr uint64_t kActivationPieceBytes = uint64_t{4} << 20;

// One piece: bytes [offset, offset + bytes) of the activations.
struct ActivationHeader {
  uint64_t epoch = 0;
  uint64_t number = 0;  // The plan's number.
  uint32_t tokens = 0;
  uint32_t hidden_size = 0;
  uint64_t offset = 0;  // A multiple of kActivationPieceBytes.
  uint64_t bytes = 0;   // The payload's size.
  ElementType type = ElementType::kFloat32;

  uint64_t total_bytes() const { return uint64_t{tokens} * hidden_size * ElementBytes(type); }
  bool operator==(const ActivationHeader&) const = default;
};

// The checksum of plan `number`'s activations; sent after their last piece. No payload.
struct ActivationSum {
  uint64_t epoch = 0;
  uint64_t number = 0;
  uint64_t checksum = 0;  // XXH3-64 of the activations.
  bool operator==(const ActivationSum&) const = default;
};

// The buffer of plan `number` is free again. No payload.
struct ActivationCredit {
  uint64_t epoch = 0;
  uint64_t number = 0;
  bool operator==(const ActivationCredit&) const = default;
};

using ActivationMessage = std::variant<ActivationHeader, ActivationSum, ActivationCredit>;

std::vector<std::byte> EncodeActivationMessage(const ActivationMessage& message);

// INVALID_ARGUMENT for anything that no encoder makes, and for pieces that the shape does not have.
absl::StatusOr<ActivationMessage> DecodeActivationMessage(std::span<const std::byte> bytes);

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_ACTIVATION_WIRE_H_

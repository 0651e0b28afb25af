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

namespace baton::prefill {

// The payload is [tokens, hidden_size] float32.
struct ActivationHeader {
  uint64_t epoch = 0;
  uint64_t number = 0;  // Of the plan.
  uint32_t tokens = 0;
  uint32_t hidden_size = 0;
  uint64_t bytes = 0;     // Of the payload: tokens * hidden_size * 4.
  uint64_t checksum = 0;  // XXH3-64 of the payload.
  bool operator==(const ActivationHeader&) const = default;
};

// The buffer of plan `number` is free again. No payload.
struct ActivationCredit {
  uint64_t epoch = 0;
  uint64_t number = 0;
  bool operator==(const ActivationCredit&) const = default;
};

using ActivationMessage = std::variant<ActivationHeader, ActivationCredit>;

std::vector<std::byte> EncodeActivationMessage(const ActivationMessage& message);

// INVALID_ARGUMENT for anything that no encoder makes, and for bytes that disagree with the shape.
absl::StatusOr<ActivationMessage> DecodeActivationMessage(std::span<const std::byte> bytes);

// XXH3-64.
uint64_t PayloadChecksum(std::span<const std::byte> payload);

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_ACTIVATION_WIRE_H_

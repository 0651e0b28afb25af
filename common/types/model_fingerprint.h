// What must agree before KV may pass between two workers.
#ifndef COMMON_TYPES_MODEL_FINGERPRINT_H_
#define COMMON_TYPES_MODEL_FINGERPRINT_H_

#include <cstdint>
#include <map>
#include <string>

#include "common/types/kv_layout.h"

namespace baton {

// The hashes are common/model's to compute (fingerprint.h), the rest a worker's options.
struct ModelFingerprint {
  uint64_t config_hash = 0;              // The keys of config.json that decide what is computed.
  std::map<int, uint64_t> layer_hashes;  // Layer -> names, shapes, types and bytes of its weights.
  uint64_t embedding_hash = 0;           // 0: not held, as everywhere but on layer 0's stage.
  uint64_t head_hash = 0;                // Final norm and head; 0: not held.
  std::string dtype;                     // For weights and activations; KV's is in kv_layout.
  KvLayout kv_layout;
  uint32_t protocol_version = 0;         // The newest that it speaks,
  uint32_t oldest_protocol_version = 0;  // and the oldest; not above it.
  bool operator==(const ModelFingerprint&) const = default;
};

}  // namespace baton

#endif  // COMMON_TYPES_MODEL_FINGERPRINT_H_

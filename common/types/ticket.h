// The hand-off's promise: who may write which layers of a request's KV to whom.
#ifndef COMMON_TYPES_TICKET_H_
#define COMMON_TYPES_TICKET_H_

#include <compare>
#include <cstdint>

#include "common/types/instance.h"
#include "common/types/kv_layout.h"

namespace baton {

// A stage that writes `layers` of a request's KV.
struct KvWriter {
  InstanceRef instance;
  LayerRange layers;
  auto operator<=>(const KvWriter&) const = default;
};

// Decode's promise of pages to one attempt at one request. Writers name (slot, generation) and page
// indices within the prompt, never addresses nor the decode's own page ids.
struct Ticket {
  InstanceRef decode;
  uint32_t slot = 0;
  uint64_t generation = 0;  // Never 0, never reused within an incarnation.
  int prompt_tokens = 0;
  int prompt_pages = 0;
  auto operator<=>(const Ticket&) const = default;
};

}  // namespace baton

#endif  // COMMON_TYPES_TICKET_H_

// The hand-off's promise: who may write which layers of a request's KV to whom.
#ifndef COMMON_TYPES_TICKET_H_
#define COMMON_TYPES_TICKET_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/types/instance.h"
#include "common/types/kv_layout.h"

namespace baton {

// A process of a chain: a stage's rank that writes its heads of `layers` of a request's KV.
struct KvWriter {
  InstanceRef instance;
  LayerRange layers;
  TensorRank tensor_rank;
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
  // The decode service's processes behind `decode`, stage by stage, each one's ranks in order.
  // Slot, generation and the prompt's pages are the same on all; each checks by its own incarnation
  // what arrives.
  std::vector<InstanceRef> followers = {};
  // Decode holds the prompt's pages before this one: the writers send from here on. There is at
  // least one to send.
  int first_page = 0;
  // The layers of each stage of the decode service, one behind the other; empty: one has all.
  std::vector<LayerRange> stages = {};

  int places() const { return 1 + static_cast<int>(followers.size()); }
  int ranks() const {  // In each stage.
    return stages.empty() ? places() : places() / static_cast<int>(stages.size());
  }
  const InstanceRef& place(int index) const {
    return index == 0 ? decode : followers.at(static_cast<size_t>(index) - 1);
  }
  auto operator<=>(const Ticket&) const = default;
};

}  // namespace baton

#endif  // COMMON_TYPES_TICKET_H_

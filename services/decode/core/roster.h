// What rank 0 learns of its followers while their links are made, until all are there: their
// instances, and the generation that its own must exceed. Plain; for the shell of the links.
#ifndef SERVICES_DECODE_CORE_ROSTER_H_
#define SERVICES_DECODE_CORE_ROSTER_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/types/ticket.h"
#include "services/decode/core/decode_core.h"

namespace baton::decode {

class Roster {
 public:
  // An epoch of these ranks begins, rank 0's own first.
  void Begin(const std::vector<KvWriter>& ranks, bool knows_growth = true) {
    knows_growth_ = knows_growth;
    followers_.clear();
    for (size_t i = 1; i < ranks.size(); ++i) followers_.push_back(ranks[i].instance);
  }

  // A follower is ready, and has had grants up to this generation. That counts in all later epochs
  // too, for KV of those grants may still be under way to it when another rank is replaced.
  void Ready(uint64_t newest_generation) {
    newest_generation_ = std::max(newest_generation_, newest_generation);
  }

  // All are; `page_count` is the smallest of theirs.
  RanksJoined Joined(int page_count) const {
    return {followers_, page_count, newest_generation_, knows_growth_};
  }

 private:
  std::vector<InstanceRef> followers_;  // In the epoch that was begun last.
  bool knows_growth_ = true;            // All of them.
  uint64_t newest_generation_ = 0;      // The newest any of them has had.
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_CORE_ROSTER_H_

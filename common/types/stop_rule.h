// When a continuation ends by itself.
#ifndef COMMON_TYPES_STOP_RULE_H_
#define COMMON_TYPES_STOP_RULE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace baton {

// What ends a sequence, beside its deadline.
struct StopRule {
  int max_tokens = 0;  // New tokens, the first included.
  int min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> eos_ids;   // The model's.
  std::vector<int32_t> stop_ids;  // The client's; not subject to ignore_eos.

  // Whether `token`, the next one after `generated` others, ends the text. With min_tokens = 2 the
  // third token is the first that may.
  bool Stops(int generated, int32_t token) const {
    if (generated < min_tokens) return false;
    const auto has = [token](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), token) != ids.end();
    };
    return has(stop_ids) || (!ignore_eos && has(eos_ids));
  }
};

}  // namespace baton

#endif  // COMMON_TYPES_STOP_RULE_H_

#include "services/router/core/pair.h"

#include <algorithm>

namespace baton::router {

bool Chain::Has(const InstanceRef& instance) const {
  return std::any_of(stages.begin(), stages.end(),
                     [&](const KvWriter& stage) { return stage.instance == instance; });
}

bool Pair::Decodes(const InstanceRef& instance) const {
  return decode == instance ||
         std::find(followers.begin(), followers.end(), instance) != followers.end();
}

PairLimits LimitsOf(const Pair& pair) {
  return {pair.chain.max_prompt_tokens,
          pair.chain.capacity_tokens,
          pair.decode_capacity_tokens,
          pair.max_context_tokens,
          pair.decode_slots,
          pair.page_size,
          pair.colocated(),
          pair.reserved_tokens};
}

int64_t OutputRoom(const Pair& pair, int64_t prompt_tokens) {
  return prompt_tokens > pair.chain.max_prompt_tokens ? 0 : pair.max_context_tokens - prompt_tokens;
}

}  // namespace baton::router

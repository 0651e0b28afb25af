#include "common/config/memory_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton::config {
namespace {

// Keeps each product of two numbers of a shape below 2^48, so that 128-bit sums cannot overflow.
constexpr int64_t kMaxDimension = int64_t{1} << 24;
constexpr int64_t kMaxElementBytes = 8;

using Wide = __int128;

struct Bounded {
  const char* field;
  int64_t value;
  int64_t maximum;
};

absl::Status CheckBounds(const ModelShape& shape, int64_t page_size) {
  const Bounded numbers[] = {
      {"layers", shape.layers, kMaxDimension},
      {"hidden_size", shape.hidden_size, kMaxDimension},
      {"heads", shape.heads, kMaxDimension},
      {"kv_heads", shape.kv_heads, kMaxDimension},
      {"head_dim", shape.head_dim, kMaxDimension},
      {"intermediate_size", shape.intermediate_size, kMaxDimension},
      {"vocab_size", shape.vocab_size, kMaxDimension},
      {"weight_bytes", shape.weight_bytes, kMaxElementBytes},
      {"kv_bytes", shape.kv_bytes, kMaxElementBytes},
      {"page_size", page_size, kMaxDimension},
  };
  for (const Bounded& number : numbers) {
    if (number.value >= 1 && number.value <= number.maximum) continue;
    return InvalidField(
        number.field, absl::StrCat("got ", number.value, "; expected from 1 to ", number.maximum));
  }
  return absl::OkStatus();
}

Wide LayerElements(const ModelShape& shape) {
  const Wide query = Wide{shape.heads} * shape.head_dim;
  const Wide kv = Wide{shape.kv_heads} * shape.head_dim;
  Wide elements = shape.hidden_size * (2 * query + 2 * kv);           // q, o, k, v
  elements += Wide{3} * shape.hidden_size * shape.intermediate_size;  // gate, up, down
  elements += Wide{2} * shape.hidden_size;                            // two norms
  if (shape.qkv_bias) elements += query + 2 * kv;
  if (shape.qk_norm) elements += Wide{2} * shape.head_dim;
  return elements;
}

Wide ShareElements(const ModelShape& shape, const ProcessShare& share) {
  const Wide vocabulary = Wide{shape.vocab_size} * shape.hidden_size;
  Wide elements = LayerElements(shape) * share.layers.size();
  if (share.embeds) elements += vocabulary;
  if (share.samples) elements += shape.hidden_size;  // final norm
  // Tied embeddings save memory only where both ends are in one process.
  const bool shares_head = shape.tie_embeddings && share.embeds;
  if (share.samples && !shares_head) elements += vocabulary;
  return elements;
}

absl::StatusOr<int64_t> Narrow(const char* field, Wide bytes) {
  if (bytes > std::numeric_limits<int64_t>::max()) {
    return InvalidField(field, "the memory for it does not fit 63 bits");
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

std::vector<ProcessShare> ChainShares(const std::vector<LayerRange>& split) {
  std::vector<ProcessShare> shares;
  for (size_t stage = 0; stage < split.size(); ++stage) {
    shares.push_back({split[stage], stage == 0, stage + 1 == split.size()});
  }
  return shares;
}

ProcessShare DecodeShare(int64_t layers) { return {{0, static_cast<int>(layers)}, true, true}; }

absl::StatusOr<MemoryPlan> PlanMemory(const ModelShape& shape, const ProcessShare& share,
                                      int64_t page_size, int64_t kv_cache_tokens) {
  BATON_RETURN_IF_ERROR(CheckBounds(shape, page_size));
  const LayerRange& layers = share.layers;
  if (layers.begin < 0 || layers.begin >= layers.end || layers.end > shape.layers) {
    return InvalidField("layers",
                        absl::StrCat("got [", layers.begin, ", ", layers.end,
                                     "); expected a range within the model's ", shape.layers));
  }
  if (kv_cache_tokens < page_size) {
    return InvalidField(
        "kv_cache_tokens",
        absl::StrCat("got ", kv_cache_tokens, "; expected at least page_size = ", page_size));
  }
  MemoryPlan plan;
  BATON_ASSIGN_OR_RETURN(plan.weight_bytes,
                         Narrow("layers", ShareElements(shape, share) * shape.weight_bytes));
  const Wide token = Wide{2} * layers.size() * shape.kv_heads * shape.head_dim * shape.kv_bytes;
  BATON_ASSIGN_OR_RETURN(plan.kv_bytes_per_token, Narrow("kv_heads", token));
  BATON_ASSIGN_OR_RETURN(plan.kv_bytes_per_page, Narrow("page_size", token * page_size));
  plan.pages = kv_cache_tokens / page_size;
  plan.capacity_tokens = plan.pages * page_size;
  BATON_ASSIGN_OR_RETURN(plan.kv_bytes,
                         Narrow("kv_cache_tokens", Wide{plan.kv_bytes_per_page} * plan.pages));
  return plan;
}

int64_t LongestPrompt(const std::vector<MemoryPlan>& processes, int64_t context_length) {
  int64_t longest = std::max<int64_t>(context_length - 1, 0);
  for (const MemoryPlan& plan : processes) longest = std::min(longest, plan.capacity_tokens);
  return longest;
}

}  // namespace baton::config

// What each process of a cluster will hold in memory, from plain numbers: `baton validate` shows it
// before any weight is read. Only what grows with the model or the cache is counted; buffers and
// the runtime come on top.
#ifndef COMMON_CONFIG_MEMORY_PLAN_H_
#define COMMON_CONFIG_MEMORY_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/layer_split.h"

namespace baton::config {

// A decoder-only transformer with a gated feed-forward network, as in config.json.
struct ModelShape {
  int64_t layers = 0;
  int64_t hidden_size = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  bool tie_embeddings = false;
  bool qkv_bias = false;     // Qwen2
  bool qk_norm = false;      // Qwen3
  int64_t weight_bytes = 2;  // Per element, in memory.
  int64_t kv_bytes = 2;      // Per element, in memory.
};

// The part of the model that a process holds.
struct ProcessShare {
  LayerRange layers;
  bool embeds = false;   // Has the input embeddings: stage 0 and decode.
  bool samples = false;  // Has the output head: the last stage and decode.
};

struct MemoryPlan {
  int64_t weight_bytes = 0;
  int64_t kv_bytes_per_token = 0;
  int64_t kv_bytes_per_page = 0;
  int64_t pages = 0;
  int64_t kv_bytes = 0;
  int64_t capacity_tokens = 0;  // Whole pages.
};

// The shares of a chain's stages, in order.
std::vector<ProcessShare> ChainShares(const std::vector<LayerRange>& split);

// The share of a decode service: the whole model.
ProcessShare DecodeShare(int64_t layers);

// Errors name the field of the shape that is out of range (each from 1 to 2^24), or `layers` if the
// share lies outside the model, or `kv_cache_tokens` if it is less than a page.
absl::StatusOr<MemoryPlan> PlanMemory(const ModelShape& shape, const ProcessShare& share,
                                      int64_t page_size, int64_t kv_cache_tokens);

// Tokens of the longest prompt that every process can hold and that leaves room for one token in a
// context of `context_length` (the first generated token needs no page before it is fed back).
int64_t LongestPrompt(const std::vector<MemoryPlan>& processes, int64_t context_length);

}  // namespace baton::config

#endif  // COMMON_CONFIG_MEMORY_PLAN_H_

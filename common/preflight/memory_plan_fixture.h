// Models and options for the tests of memory plans.
#ifndef COMMON_PREFLIGHT_MEMORY_PLAN_FIXTURE_H_
#define COMMON_PREFLIGHT_MEMORY_PLAN_FIXTURE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/preflight/memory_plan.h"

namespace baton {

using v1::OptionSpec;

// Llama-3.1-8B; its model card's index counts 8,030,261,248 parameters.
inline ModelFacts Llama8B() {
  ModelFacts facts;
  facts.config.hidden_size = 4096;
  facts.config.intermediate_size = 14336;
  facts.config.num_hidden_layers = 32;
  facts.config.num_attention_heads = 32;
  facts.config.num_key_value_heads = 8;
  facts.config.head_dim = 128;
  facts.config.vocab_size = 128256;
  facts.config.max_position_embeddings = 131072;
  return facts;
}

// Qwen3-235B-A22B in bfloat16: 235,093,634,560 parameters.
inline ModelFacts Qwen235B() {
  ModelFacts facts;
  facts.config.hidden_size = 4096;
  facts.config.intermediate_size = 12288;  // No layer has it.
  facts.config.num_hidden_layers = 94;
  facts.config.num_attention_heads = 64;
  facts.config.num_key_value_heads = 4;
  facts.config.head_dim = 128;
  facts.config.vocab_size = 151936;
  facts.config.max_position_embeddings = 40960;
  facts.config.qk_norm = true;
  facts.config.experts.count = facts.config.experts.held = 128;
  facts.config.experts.active = 8;
  facts.config.experts.inner = 1536;
  facts.dtype = facts.kv_dtype = ElementType::kBFloat16;
  return facts;
}

inline v1::Options Options() {
  v1::Options options;
  options.set_pp_size(3);
  options.set_tp_size(1);
  options.set_decode_pp_size(1);
  options.set_decode_tp_size(1);
  options.set_pp_send_slice(true);
  options.set_prefill_chains(2);
  options.set_decodes(4);
  options.set_page_size(64);
  options.set_kv_cache_tokens(131072);
  options.set_chunked_prefill_size(2048);
  options.set_max_running_requests(64);
  options.set_max_prefill_requests(16);
  options.set_activation_credits(2);
  options.set_plans_in_flight(2);
  return options;
}

inline constexpr int64_t kContext = 131072;

// --pp-size above is the chains'; a decode worker's own is 1.
inline absl::StatusOr<HostMemory> PlanFor(v1::Options options, config::Role role,
                                          const ModelFacts& model, int64_t context_tokens) {
  if (role == OptionSpec::DECODE) options.set_pp_size(1);
  return PlanMemory(options, role, model, context_tokens);
}

}  // namespace baton

#endif  // COMMON_PREFLIGHT_MEMORY_PLAN_FIXTURE_H_

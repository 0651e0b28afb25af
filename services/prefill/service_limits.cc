#include "services/prefill/service_limits.h"

#include <algorithm>
#include <climits>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/kv/head_routes.h"

namespace baton::prefill {
namespace {

int RoundUp(int value, int unit) {
  const int64_t units = (int64_t{value} + unit - 1) / unit;
  return static_cast<int>(std::min<int64_t>(units * unit, INT_MAX));
}

}  // namespace

PlannerLimits LimitsOf(const PrefillOptions& options, const Executor& executor) {
  const int64_t row_bytes = int64_t{executor.activation_columns()} *
                            static_cast<int64_t>(ElementBytes(executor.activation_type()));
  PlannerLimits limits = PlannerLimitsOf(options, executor.kv().page_size, row_bytes);
  limits.vocab_size = executor.config().vocab_size;
  if (options.role == Role::kPrefill) return limits;
  limits.granting = options.self;
  limits.layers = executor.config().num_hidden_layers;
  limits.kv_heads = executor.config().num_key_value_heads;
  limits.name = "decode service";
  return limits;
}

MemberGrantLimits GrantLimitsOf(const PrefillOptions& options, const Executor& executor) {
  const LayerRange layers{executor.kv().layer_begin, executor.kv().layer_end};
  return {{layers, options.tensor_rank},
          executor.config().num_key_value_heads,
          executor.kv().page_count,
          options.planner.max_open_requests};
}

PlanBounds BoundsOf(const PrefillOptions& options, const Executor& executor,
                    Constraints* constraints) {
  PlanBounds bounds;
  bounds.page_count = executor.kv().page_count;
  bounds.max_plan_tokens = RoundUp(options.planner.max_context_tokens, executor.kv().page_size);
  if (options.planner.decodes) bounds.max_plan_tokens += kMaxPlanEntries;
  bounds.max_context_tokens = options.planner.max_context_tokens;
  bounds.kv_heads = executor.config().num_key_value_heads;
  bounds.layers = executor.config().num_hidden_layers;
  bounds.tensor_ranks = options.tensor_rank.size;
  bounds.vocab_size = executor.config().vocab_size;
  bounds.eos_token_ids = executor.config().eos_token_ids;
  bounds.embeds = options.pp_rank == 0;
  bounds.draws = executor.last_stage() && options.tensor_rank.rank == 0;
  bounds.constraints = constraints;
  return bounds;
}

absl::Status CheckOptions(const PrefillOptions& options, const Executor& executor) {
  if (options.pp_size < 1 || options.pp_rank < 0 || options.pp_rank >= options.pp_size) {
    return InvalidField("pp_rank", absl::StrCat(options.pp_rank, " of ", options.pp_size));
  }
  if (executor.first_stage() != (options.pp_rank == 0) ||
      executor.last_stage() != (options.pp_rank + 1 == options.pp_size)) {
    return InvalidField(
        "pp_layer_partition",
        absl::StrCat("layers [", executor.kv().layer_begin, ", ", executor.kv().layer_end,
                     ") don't fit stage ", options.pp_rank, " of ", options.pp_size));
  }
  if (executor.tensor_rank() != options.tensor_rank) {
    return InvalidField("tp_rank",
                        absl::StrCat(options.tensor_rank.rank, " of ", options.tensor_rank.size,
                                     ", the executor is ", executor.tensor_rank().rank, " of ",
                                     executor.tensor_rank().size));
  }
  const int page_size = executor.kv().page_size;
  if (options.planner.chunk_tokens != -1 &&
      (options.planner.chunk_tokens < page_size || options.planner.chunk_tokens % page_size != 0)) {
    return InvalidField("chunked_prefill_size",
                        absl::StrCat(options.planner.chunk_tokens,
                                     " is not a multiple of the page size ", page_size));
  }
  if (options.planner.max_context_tokens < 1)
    return InvalidField("context_length", "must be positive");
  if (options.planner.decodes && options.planner.max_open_requests > kMaxPlanEntries) {
    return InvalidField("max_running_requests",
                        absl::StrCat(options.planner.max_open_requests, ", a plan has at most ",
                                     kMaxPlanEntries, " rows"));
  }
  // That the ranks can share the heads at all; with which decode service is for each ticket to say.
  return SourcesOf(executor.config().num_key_value_heads, options.tensor_rank.size, 1).status();
}

}  // namespace baton::prefill

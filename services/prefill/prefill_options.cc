#include "services/prefill/prefill_options.h"

#include <algorithm>
#include <climits>

#include "absl/strings/numbers.h"
#include "common/base/check.h"

namespace baton::prefill {
namespace {

// A link of a gigabit a second with other things to do than these activations.
constexpr int64_t kSlowestBytesPerMs = 25'000;

// What SGLang's --max-prefill-tokens is by default.
constexpr int64_t kSglangPrefillTokens = 16384;

constexpr int kPlanLimit = 257;  // More than a chain of 64 stages has under way.

QueueOrder QueueOrderOf(const std::string& policy) {
  if (policy == "lpm" || policy == "dfs-weight") return QueueOrder::kLongestPrefix;
  if (policy == "lof") return QueueOrder::kLongestOutput;
  if (policy == "random") return QueueOrder::kRandom;
  return QueueOrder::kArrival;
}

// What a colocated chain has open at once.
void RunsOf(const v1::Options& options, PrefillOptions& own) {
  own.planner.max_open_requests = static_cast<int>(options.max_running_requests());
  BATON_CHECK(absl::SimpleAtod(options.schedule_conservativeness(), &own.planner.conservativeness))
      << options.schedule_conservativeness();
  if (options.pp_max_micro_batch_size() == 0) return;
  own.planner.slot_requests = static_cast<int>(options.pp_max_micro_batch_size());
  const int64_t slots = own.pp_size + std::max(own.async_depth, 0);
  own.planner.max_open_requests = static_cast<int>(
      std::min(options.max_running_requests(), slots * options.pp_max_micro_batch_size()));
}

PrefillOptions SchedulingOfBoth(const v1::Options& options, int max_context_tokens) {
  PrefillOptions own;
  own.pp_size = static_cast<int>(options.pp_size());
  own.planner.caches = !options.disable_radix_cache();
  // A CPU has nothing to win: its cores have other work to do between two steps.
  const bool elsewhere = options.device().starts_with("cuda") || !options.timed_profile().empty();
  own.planner.feeds_ahead =
      options.overlap_schedule() == "on" || (options.overlap_schedule() == "auto" && elsewhere);
  own.planner.reserved_decode_tokens = static_cast<int>(options.num_reserved_decode_tokens());
  own.planner.max_queued_requests = static_cast<int>(options.max_queued_requests());
  own.planner.max_context_tokens = max_context_tokens;
  own.kv_lease_ms = options.kv_lease_ms();
  return own;
}

}  // namespace

PrefillOptions SchedulingOfDecode(const v1::Options& options, int max_context_tokens) {
  PrefillOptions own = SchedulingOfBoth(options, max_context_tokens);
  own.role = Role::kDecode;
  own.planner.max_open_requests = static_cast<int>(options.max_running_requests());
  return own;
}

PrefillOptions SchedulingOf(const v1::Options& options, int max_context_tokens) {
  PrefillOptions own = SchedulingOfBoth(options, max_context_tokens);
  own.planner.chunk_tokens = static_cast<int>(options.chunked_prefill_size());
  own.planner.chunk_rule = ParseChunkRule(options.chunk_policy()).value_or(ChunkRule::kFixed);
  const int64_t most = options.max_prefill_tokens();
  own.planner.later_tokens = static_cast<int>(most > 0 ? most : kSglangPrefillTokens);
  own.planner.shares_plans = options.schedule_policy() == "fair";
  own.planner.queue_order = QueueOrderOf(options.schedule_policy());
  // A token passes every stage.
  own.planner.target_itl_us = options.target_itl_ms() * 1000 / std::max(own.pp_size, 1);
  BATON_CHECK(
      absl::SimpleAtod(options.dynamic_chunking_smooth_factor(), &own.planner.smooth_factor))
      << options.dynamic_chunking_smooth_factor();
  own.planner.decode_max_wait_us = options.decode_max_wait_ms() * 1000;
  if (most > 0) own.planner.input_tokens = static_cast<int>(std::max(most, options.page_size()));
  own.async_depth = static_cast<int>(options.pp_async_batch_depth());
  own.plans_in_flight = static_cast<int>(options.plans_in_flight());
  own.activation_credits = static_cast<int>(options.activation_credits());
  own.planner.max_open_requests = static_cast<int>(options.max_prefill_requests());
  if (options.disaggregation_mode() == "null") RunsOf(options, own);
  return own;
}

PlannerLimits PlannerLimitsOf(const PrefillOptions& options, int page_size, int64_t row_bytes) {
  PlannerLimits limits = options.planner;
  limits.page_size = page_size;
  if (limits.chunk_tokens < 0) limits.chunk_tokens = INT_MAX;
  // As there, where one stage has no other to wait for it.
  if (options.pp_size == 1 && limits.chunk_rule == ChunkRule::kSglang) {
    limits.chunk_rule = ChunkRule::kFixed;
  }
  limits.input_tokens = std::max(limits.input_tokens, page_size);
  limits.extra_slots = std::max(options.async_depth, 0);
  limits.plan_window =
      options.pp_size + (options.async_depth < 0 ? options.plans_in_flight : options.async_depth);
  // At least one runs and one waits: issuing one takes longer than taking it up.
  limits.stage0_lead = std::max(limits.stage0_lead, options.plans_in_flight);
  const int64_t plan_tokens = std::min(limits.chunk_tokens, limits.max_context_tokens);
  limits.plan_grace_us += plan_tokens * row_bytes / kSlowestBytesPerMs * 1000;
  return limits;
}

StageOptions StageOptionsOf(const PrefillOptions& options, int page_size) {
  StageOptions stage;
  stage.stage = options.pp_rank;
  stage.stages = options.pp_size;
  stage.tensor_rank = options.tensor_rank;
  stage.page_size = page_size;
  stage.activation_credits = options.activation_credits;
  stage.plan_limit = kPlanLimit;
  stage.plans_in_flight = options.plans_in_flight;
  return stage;
}

}  // namespace baton::prefill

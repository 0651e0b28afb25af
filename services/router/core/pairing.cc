#include "services/router/core/pairing.h"

#include <algorithm>
#include <utility>

namespace baton::router {
namespace {

// 64 MB at most, and as many tokens as some 500 chains of 128k tokens hold.
constexpr size_t kMostPrefixes = size_t{1} << 20;

int64_t PagesOf(const Pair& pair, int64_t tokens) { return LimitsOf(pair).InPages(tokens); }

}  // namespace

Pairing::Pairing(Policy policy, uint64_t seed, const BackoffRange& backoff)
    : policy_(policy), random_(seed), backoff_(backoff), index_(kMostPrefixes) {}

bool Pairing::IsFull(const Assigned& decode, const PairLimits& limits, int64_t context_tokens) {
  return decode.requests >= limits.decode_slots ||
         decode.context_tokens + context_tokens > limits.decode_capacity_tokens;
}

bool Pairing::SeemsFull(const Assigned& decode, const PairLimits& limits, int64_t context_tokens) {
  const int64_t tokens = decode.context_tokens + decode.others_context_tokens + context_tokens;
  return decode.all_requests() >= limits.decode_slots || tokens > limits.decode_capacity_tokens;
}

bool Pairing::HasRoom(const Assigned& chain, const PairLimits& limits) {
  if (!chain.limit.HasRoom(chain.requests)) return false;
  if (limits.colocated) {
    return chain.requests <= limits.decode_slots &&
           chain.context_tokens <= limits.decode_capacity_tokens;
  }
  return chain.prompt_tokens - chain.ungranted_tokens < limits.chain_capacity_tokens;
}

bool Pairing::HasRoom(const Assigned& decode, const PairLimits& limits, int64_t context_tokens) {
  if (decode.requests >= limits.decode_slots) return false;
  if (decode.ungranted > 0 && IsFull(decode, limits, context_tokens)) return false;
  return decode.limit.HasRoom(decode.requests);
}

bool Pairing::Begin(const Pair& pair, int prompt_tokens, int max_tokens, int cached_tokens) {
  const int64_t prompt = PagesOf(pair, prompt_tokens);
  const int64_t context = LimitsOf(pair).AtFirst(prompt_tokens, max_tokens);
  const bool full = !pair.colocated() && IsFull(Of(pair.decode), LimitsOf(pair), context);
  ++uses_;
  Assigned& chain = workers_[pair.chain.stage0];
  chain.lost = false;
  chain.colocated = pair.colocated();
  chain.prompt_tokens += prompt;
  chain.work_tokens += prompt_tokens - cached_tokens;
  chain.ungranted_tokens += full ? prompt : 0;
  chain.prompts += 1;
  chain.requests += 1;
  chain.last_used = uses_;
  Assigned& decode = workers_[pair.decode];
  decode.lost = false;
  decode.context_tokens += context;
  decode.ungranted += full ? 1 : 0;
  decode.requests += pair.colocated() ? 0 : 1;
  decode.last_used = uses_;
  Weigh(chain);
  Weigh(decode);
  return full;
}

void Pairing::Granted(const Pair& pair, int prompt_tokens) {
  ++changes_;
  const int64_t prompt = PagesOf(pair, prompt_tokens);
  const auto chain = workers_.find(pair.chain.stage0);
  const auto decode = workers_.find(pair.decode);
  if (chain == workers_.end() || decode == workers_.end() || decode->second.ungranted < 1 ||
      chain->second.ungranted_tokens < prompt) {
    ++mended_total_;
    return;
  }
  chain->second.ungranted_tokens -= prompt;
  decode->second.ungranted -= 1;
}

void Pairing::Refused(const InstanceRef& instance, int64_t hint_us, int64_t now_us) {
  const auto worker = workers_.find(instance);
  if (worker == workers_.end() || worker->second.requests == 0) return;
  LearnedLimit& limit = worker->second.limit;
  limit.Refuse(worker->second.requests - 1, hint_us, now_us, random_, backoff_);
  next_us_ = std::min(next_us_, limit.NextUs());
}

void Pairing::Advance(int64_t now_us) {
  if (now_us < next_us_) return;
  ++changes_;
  next_us_ = kNeverUs;
  for (auto& [instance, worker] : workers_) {
    worker.limit.Advance(worker.requests, now_us, random_);
    next_us_ = std::min(next_us_, worker.limit.NextUs());
  }
}

void Pairing::Report(const InstanceRef& instance, const WorkerLoad& load, int64_t used_tokens) {
  ++changes_;
  Assigned& worker = workers_[instance];
  worker.others_prompt_tokens = std::max<int64_t>(0, load.queued_tokens - worker.prompt_tokens);
  worker.others_context_tokens = std::max<int64_t>(0, used_tokens - worker.context_tokens);
  worker.others_requests =
      std::max(0, load.running_requests + load.queued_requests - worker.requests);
  worker.pace.Fade();
  worker.exposed_us.Fade(0);
  worker.token_us.Fade(0);
  Weigh(worker);
}

void Pairing::EndPrefill(const Pair& pair, int prompt_tokens, int cached_tokens) {
  const int64_t prompt = PagesOf(pair, prompt_tokens);
  const auto chain = workers_.find(pair.chain.stage0);
  ++changes_;
  if (chain == workers_.end() || chain->second.requests < 1 ||
      chain->second.prompt_tokens < prompt) {
    ++mended_total_;
    return;
  }
  Assigned& worker = chain->second;
  worker.prompt_tokens -= prompt;
  worker.work_tokens = std::max<int64_t>(0, worker.work_tokens - (prompt_tokens - cached_tokens));
  worker.prompts = std::max(0, worker.prompts - 1);
  worker.requests -= pair.colocated() ? 0 : 1;
  Weigh(worker);
  DropIfOver(chain);
}

void Pairing::EndDecode(const Pair& pair, int prompt_tokens, int max_tokens) {
  const int64_t context = LimitsOf(pair).AtFirst(prompt_tokens, max_tokens);
  const auto decode = workers_.find(pair.decode);
  ++changes_;
  if (decode == workers_.end() || decode->second.requests < 1 ||
      decode->second.context_tokens < context) {
    ++mended_total_;
    return;
  }
  decode->second.context_tokens -= context;
  decode->second.requests -= 1;
  Weigh(decode->second);
  DropIfOver(decode);
}

// While it had prompts to compute, from the one before on.
void Pairing::LearnPrompt(const Pair& pair, int computed_tokens, int64_t begun_us, int64_t now_us) {
  const auto chain = workers_.find(pair.chain.stage0);
  if (chain == workers_.end()) return;
  Assigned& worker = chain->second;
  const auto took_us = static_cast<double>(now_us - std::max(begun_us, worker.through_us));
  worker.through_us = now_us;
  prompt_cost_.Learn(computed_tokens, took_us, worker.pace);
}

void Pairing::LearnExposed(const Pair& pair, int64_t exposed_us) {
  const auto decode = workers_.find(pair.decode);
  if (decode != workers_.end()) decode->second.exposed_us.Add(static_cast<double>(exposed_us));
}

void Pairing::LearnAnswer(const Pair& pair, int64_t held_us, int64_t token_us) {
  const auto decode = workers_.find(pair.decode);
  if (decode == workers_.end()) return;
  decode->second.held_us.Add(static_cast<double>(held_us));
  decode->second.token_us.Add(static_cast<double>(token_us));
}

void Pairing::Forget(const InstanceRef& instance) {
  ++changes_;
  const auto worker = workers_.find(instance);
  if (worker == workers_.end()) return;
  Assigned& lost = worker->second;
  lost.lost = true;
  lost.others_prompt_tokens = lost.others_context_tokens = lost.others_requests = 0;
  Weigh(lost);
  DropIfOver(worker);
}

void Pairing::DropIfOver(WorkerMap::iterator worker) {
  Assigned& account = worker->second;
  if (!account.lost || !account.AtRest()) return;
  // Until the next choice follows the roster, which has lost it too.
  if (account.chain_slot.has_value()) chain_loads_.Remove(*account.chain_slot);
  if (account.decode_slot.has_value()) decode_loads_.Remove(*account.decode_slot);
  workers_.erase(worker);
}

const Pairing::Assigned& Pairing::Of(const InstanceRef& instance) const {
  static const Assigned kNothing;
  const auto worker = workers_.find(instance);
  return worker == workers_.end() ? kNothing : worker->second;
}

void Pairing::Weigh(const Assigned& worker) {
  const bool by_turns = policy_ == Policy::kRoundRobin;
  const int64_t requests = by_turns ? 0 : worker.all_requests();
  const int64_t prompts = by_turns ? 0 : worker.prompt_tokens + worker.others_prompt_tokens;
  if (worker.chain_slot.has_value()) {
    const int64_t of_chain = worker.colocated ? requests : 0;
    chain_loads_.Set(*worker.chain_slot, {prompts, of_chain, worker.last_used});
  }
  if (worker.decode_slot.has_value()) {
    decode_loads_.Set(*worker.decode_slot, {0, requests, worker.last_used});
  }
}

}  // namespace baton::router

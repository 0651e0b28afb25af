#include "services/router/core/pairing.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "services/router/core/context_overflow.h"

namespace baton::router {
namespace {

// The same processes, in the same life.
bool SameChain(const Pair& pair, const FailedPair& failed) {
  return pair.chain.stages == failed.pair.chain.stages;
}
bool SameDecode(const Pair& pair, const FailedPair& failed) {
  return pair.decode == failed.pair.decode && pair.followers == failed.pair.followers;
}

// In whole pages.
int64_t PagesOf(const Pair& pair, int64_t tokens) {
  return (tokens + pair.page_size - 1) / pair.page_size * pair.page_size;
}

// How large a request may be.
struct Largest {
  int64_t prompt = 0;         // Tokens that fit into a chain.
  int64_t context = 0;        // Prompt and output that fit into a decode service.
  int64_t colocated = 0;      // The same of a colocated chain.
  int64_t beside_prompt = 0;  // Output beside a prompt that a pair's chain takes.

  void Count(const Pair& pair, int prompt_tokens) {
    beside_prompt = std::max(beside_prompt, OutputRoom(pair, prompt_tokens));
    if (pair.colocated()) {
      colocated = std::max(colocated, pair.max_context_tokens);
      return;
    }
    prompt = std::max(prompt, pair.chain.max_prompt_tokens);
    context = std::max(context, pair.max_context_tokens);
  }
};

absl::Status TooLong(const Largest& largest, int prompt_tokens, int max_tokens) {
  if (largest.beside_prompt <= 0) {
    std::vector<std::string> takes;
    if (largest.context > 0) {
      takes.push_back(absl::StrCat("the largest prefill chain takes prompts of ", largest.prompt,
                                   " tokens, the largest decode service ", largest.context,
                                   " tokens of prompt and output"));
    }
    if (largest.colocated > 0) {
      takes.push_back(absl::StrCat("the largest colocated chain takes ", largest.colocated,
                                   " tokens of prompt and output"));
    }
    return ContextOverflow(kPromptField,
                           absl::StrCat("has ", prompt_tokens,
                                        " tokens, and the KV caches of no workers that are ready ",
                                        "hold it: ", absl::StrJoin(takes, ", "),
                                        ", of which at least one is for the output"));
  }
  return ContextOverflow(
      kMaxTokensField,
      absl::StrCat("the KV caches of the ready workers hold at most ",
                   prompt_tokens + largest.beside_prompt, " tokens of this prompt and its output, ",
                   "but ", prompt_tokens, " of the prompt and ", max_tokens, " of the output are ",
                   int64_t{prompt_tokens} + max_tokens, "; shorten the prompt or ask for at most ",
                   largest.beside_prompt));
}

bool UsesFailedLeg(const Pair& pair, const FailedPair& failed) {
  return failed.leg == Role::kDecode ? SameDecode(pair, failed) : SameChain(pair, failed);
}

bool UsesOtherLeg(const Pair& pair, const FailedPair& failed) {
  return failed.leg == Role::kDecode ? SameChain(pair, failed) : SameDecode(pair, failed);
}

}  // namespace

Policy ParsePolicy(const std::string& name) {
  return name == "round_robin" ? Policy::kRoundRobin : Policy::kLeastLoad;
}

absl::StatusOr<Pair> Pairing::Choose(const std::vector<Pair>& pairs, int prompt_tokens,
                                     int max_tokens, const FailedPair* failed, bool clip) const {
  const Pair* best = nullptr;
  std::optional<Cost> best_cost;
  int64_t best_tokens = 0;  // Prompt and output.
  Largest largest;
  bool any = false;
  for (const Pair& pair : pairs) {
    if (failed != nullptr && SameChain(pair, *failed) && SameDecode(pair, *failed)) {
      continue;
    }
    any = true;
    largest.Count(pair, prompt_tokens);
    const int64_t room = OutputRoom(pair, prompt_tokens);
    if (room < (clip ? 1 : max_tokens)) continue;
    const int64_t output = std::min<int64_t>(max_tokens, room);
    Cost cost = CostOf(pair, PagesOf(pair, prompt_tokens + output), failed);
    cost.clipped = max_tokens - output;
    if (best_cost.has_value() && *best_cost <= cost) continue;
    best = &pair;
    best_cost = cost;
    best_tokens = prompt_tokens + output;
  }
  if (!any) return absl::NotFoundError("no other pair is ready");
  if (best == nullptr) return TooLong(largest, prompt_tokens, max_tokens);
  if (!HasRoom(*best, PagesOf(*best, best_tokens))) {
    return Overloaded(absl::ResourceExhaustedError(
        "all workers that could take the request have as much as they take"));
  }
  return *best;
}

bool Pairing::DecodeIsFull(const Pair& pair, int64_t context_tokens) const {
  const Assigned& decode = Of(pair.decode);
  return decode.requests >= pair.decode_slots ||
         decode.context_tokens + context_tokens > pair.decode_capacity_tokens;
}

bool Pairing::HasRoom(const Pair& pair, int64_t context_tokens) const {
  const Assigned& chain = Of(pair.chain.stage0);
  const Assigned& decode = Of(pair.decode);
  if (!chain.limit.HasRoom(chain.requests) || !decode.limit.HasRoom(decode.requests)) return false;
  if (pair.colocated()) {
    return chain.requests <= pair.decode_slots &&
           chain.context_tokens <= pair.decode_capacity_tokens;
  }
  if (decode.ungranted > 0 && DecodeIsFull(pair, context_tokens)) return false;
  return chain.prompt_tokens - chain.ungranted_tokens < pair.chain.capacity_tokens;
}

Pairing::Cost Pairing::CostOf(const Pair& pair, int64_t context_tokens,
                              const FailedPair* failed) const {
  const Assigned& chain = Of(pair.chain.stage0);
  const Assigned& decode = Of(pair.decode);
  Cost cost;
  cost.again = failed != nullptr && UsesFailedLeg(pair, *failed);
  cost.no_room = !HasRoom(pair, context_tokens);
  cost.beside = failed != nullptr && UsesOtherLeg(pair, *failed);
  cost.chain_used = chain.last_used;
  cost.decode_used = decode.last_used;
  if (policy_ == Policy::kRoundRobin) return cost;
  const Others& others = OthersOn(pair.decode);
  const int64_t tokens = decode.context_tokens + others.context_tokens + context_tokens;
  cost.requests = std::max(decode.requests + others.requests, pair.decode_load.running_requests);
  cost.full = cost.requests >= pair.decode_slots || tokens > pair.decode_capacity_tokens;
  cost.prompt_tokens = std::max(chain.prompt_tokens + OthersOn(pair.chain.stage0).prompt_tokens,
                                pair.chain.load.queued_tokens);
  return cost;
}

bool Pairing::Begin(const Pair& pair, int prompt_tokens, int max_tokens) {
  const int64_t prompt = PagesOf(pair, prompt_tokens);
  const int64_t context = PagesOf(pair, int64_t{prompt_tokens} + max_tokens);
  const bool full = !pair.colocated() && DecodeIsFull(pair, context);
  ++uses_;
  Assigned& chain = workers_[pair.chain.stage0];
  chain.lost = false;
  chain.prompt_tokens += prompt;
  chain.ungranted_tokens += full ? prompt : 0;
  chain.requests += 1;
  chain.last_used = uses_;
  Assigned& decode = workers_[pair.decode];
  decode.lost = false;
  decode.context_tokens += context;
  decode.ungranted += full ? 1 : 0;
  decode.requests += pair.colocated() ? 0 : 1;
  decode.last_used = uses_;
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
  if (worker == workers_.end()) return;
  LearnedLimit& limit = worker->second.limit;
  limit.Refuse(std::max(0, worker->second.requests - 1), hint_us, now_us, random_, backoff_);
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
  const Assigned& own = Of(instance);
  Others& others = others_[instance];
  others.prompt_tokens = std::max<int64_t>(0, load.queued_tokens - own.prompt_tokens);
  others.context_tokens = std::max<int64_t>(0, used_tokens - own.context_tokens);
  others.requests = std::max(0, load.running_requests + load.queued_requests - own.requests);
}

void Pairing::EndPrefill(const Pair& pair, int prompt_tokens) {
  const int64_t prompt = PagesOf(pair, prompt_tokens);
  const auto chain = workers_.find(pair.chain.stage0);
  ++changes_;
  if (chain == workers_.end() || chain->second.requests < 1 ||
      chain->second.prompt_tokens < prompt) {
    ++mended_total_;
    return;
  }
  chain->second.prompt_tokens -= prompt;
  chain->second.requests -= pair.colocated() ? 0 : 1;
  DropIfOver(chain);
}

void Pairing::EndDecode(const Pair& pair, int prompt_tokens, int max_tokens) {
  const int64_t context = PagesOf(pair, int64_t{prompt_tokens} + max_tokens);
  const auto decode = workers_.find(pair.decode);
  ++changes_;
  if (decode == workers_.end() || decode->second.requests < 1 ||
      decode->second.context_tokens < context) {
    ++mended_total_;
    return;
  }
  decode->second.context_tokens -= context;
  decode->second.requests -= 1;
  DropIfOver(decode);
}

void Pairing::Forget(const InstanceRef& instance) {
  ++changes_;
  others_.erase(instance);
  const auto worker = workers_.find(instance);
  if (worker == workers_.end()) return;
  worker->second.lost = true;
  DropIfOver(worker);
}

void Pairing::DropIfOver(WorkerMap::iterator worker) {
  if (worker->second.lost && worker->second.AtRest()) workers_.erase(worker);
}

bool Pairing::AtRest() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& entry) { return entry.second.AtRest(); });
}

const Pairing::Assigned& Pairing::Of(const InstanceRef& instance) const {
  static const Assigned kNothing;
  const auto worker = workers_.find(instance);
  return worker == workers_.end() ? kNothing : worker->second;
}

const Pairing::Others& Pairing::OthersOn(const InstanceRef& instance) const {
  static const Others kNone;
  const auto others = others_.find(instance);
  return others == others_.end() ? kNone : others->second;
}

}  // namespace baton::router

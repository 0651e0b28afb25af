// Which pair a router may give a request, and which it must (router_witness.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/router_witness.h"

namespace baton::sim {
namespace {

constexpr int64_t kLongestLimitUs = 10'000'000;  // Well beyond any backoff.

bool SamePair(const router::Pair& a, const router::Pair& b) {
  return a.decode == b.decode && a.followers == b.followers && a.chain.stages == b.chain.stages;
}

bool SameDecode(const router::Pair& a, const router::Pair& b) {
  return a.decode == b.decode && a.followers == b.followers;
}

}  // namespace

bool RouterWitness::FitsSome(const Request& request, const Failure* failed, bool with_room) {
  const int64_t context_tokens = int64_t{request.asked.prompt_tokens} + request.asked.max_tokens;
  bool any = false;
  bool any_with_room = false;
  bool others = false;  // None of them is what failed.
  bool others_with_room = false;
  for (const router::Pair& pair : members_.Pairs()) {
    if (failed != nullptr && SamePair(pair, failed->pair)) continue;
    if (request.asked.prompt_tokens + request.drawn > pair.chain.max_prompt_tokens ||
        context_tokens > pair.max_context_tokens) {
      continue;
    }
    const bool room = !limited_.contains(pair.decode) && !limited_.contains(pair.chain.stage0) &&
                      HasRoom(request, pair, Room::kCertain);
    const bool other = failed == nullptr || !UsesFailed(pair, *failed);
    any = true;
    any_with_room = any_with_room || room;
    others = others || other;
    others_with_room = others_with_room || (other && room);
  }
  if (!with_room) return any;
  return others ? others_with_room : any_with_room;
}

bool RouterWitness::UsesFailed(const router::Pair& pair, const Failure& failed) {
  return failed.blamed == Role::kDecode ? SameDecode(pair, failed.pair)
                                        : pair.chain.stages == failed.pair.chain.stages;
}

int64_t RouterWitness::Request::PromptIn(const router::Pair& of) const {
  const int64_t pages = (asked.prompt_tokens + drawn + of.page_size - 1) / of.page_size;
  return pages * of.page_size;
}

int64_t RouterWitness::Request::ContextIn(const router::Pair& of) const {
  int draws = asked.max_tokens - drawn;
  if (of.reserved_tokens > 0) draws = std::min(draws, of.reserved_tokens);
  const int64_t pages = (asked.prompt_tokens + drawn + draws + of.page_size - 1) / of.page_size;
  return pages * of.page_size;
}

RouterWitness::Work RouterWitness::WorkOn(const InstanceRef& instance) const {
  Work work;
  for (const auto& [call_id, request] : requests_) {
    if (request.attempt == 0) continue;
    const bool reserving = request.phase == Phase::kReserving;
    const bool ungranted = reserving && request.began_full;
    const bool perhaps = reserving && !ungranted && request.perhaps_full;
    if (request.pair.colocated()) {
      if (request.pair.decode != instance) continue;
      work.prompt_tokens += request.prefill_counts ? request.PromptIn(request.pair) : 0;
      work.context_tokens += request.ContextIn(request.pair);
      ++work.chain_requests;  // Until its end.
      continue;
    }
    if (request.prefill_counts && request.pair.chain.stage0 == instance) {
      work.prompt_tokens += request.PromptIn(request.pair);
      const int64_t tokens = ungranted ? 0 : request.PromptIn(request.pair);
      (perhaps ? work.perhaps_granted_tokens : work.granted_tokens) += tokens;
      ++work.chain_requests;
    }
    if (request.pair.decode == instance) {
      work.context_tokens += request.ContextIn(request.pair);
      work.ungranted += ungranted ? 1 : 0;
      work.perhaps_ungranted += perhaps ? 1 : 0;
      ++work.decode_requests;
    }
  }
  return work;
}

bool RouterWitness::IsFull(const Request& request, const router::Pair& pair) const {
  const Work decode = WorkOn(pair.decode);
  return decode.decode_requests >= pair.decode_slots ||
         decode.context_tokens + request.ContextIn(pair) > pair.decode_capacity_tokens;
}

// What a refusal promises for the time of its hint. The limit that it sets may last longer, and
// what others that were on their way then say changes nothing of its time: of them a burst's first
// one counts.
void RouterWitness::HearRefusal(const InstanceRef& worker, const absl::Status& refusal) {
  const Work work = WorkOn(worker);
  const int requests = work.chain_requests + work.decode_requests;
  const auto [at, first] = limited_.try_emplace(worker);
  Cap& cap = at->second;
  if (first || world_.now_us() > cap.refused_us + kLongestLimitUs) {
    cap.requests = requests;
    cap.until_us = world_.now_us() + RetryHintMsOf(refusal) * 1000;
  } else {
    cap.requests = std::min(cap.requests, requests);
  }
  cap.refused_us = world_.now_us();
}

bool RouterWitness::IsCapped(const InstanceRef& worker, int requests) const {
  const auto cap = limited_.find(worker);
  return cap != limited_.end() && world_.now_us() < cap->second.until_us &&
         requests >= cap->second.requests;
}

// A chain is given prompts until they fill its pages, a decode service requests up to its slots,
// and one that its pages don't hold.
bool RouterWitness::HasRoom(const Request& request, const router::Pair& pair, Room room) const {
  const Work decode = WorkOn(pair.decode);
  const Work chain = WorkOn(pair.chain.stage0);
  if (pair.colocated()) {  // Until one waits for its pages or for a place.
    return chain.chain_requests <= pair.decode_slots &&
           chain.context_tokens <= pair.decode_capacity_tokens;
  }
  const bool certain = room == Room::kCertain;
  if (decode.decode_requests >= pair.decode_slots) return false;
  const int ungranted = decode.ungranted + (certain ? decode.perhaps_ungranted : 0);
  if (ungranted > 0 && IsFull(request, pair)) return false;
  const int64_t granted = chain.granted_tokens + (certain ? chain.perhaps_granted_tokens : 0);
  return granted < pair.chain.capacity_tokens;
}

RouterWitness::Cost RouterWitness::CostOf(const Request& request, const router::Pair& pair,
                                          Room room) const {
  const auto used = [this](const InstanceRef& instance) {
    const auto found = last_used_.find(instance);
    return found == last_used_.end() ? 0 : found->second;
  };
  const auto others_on = [this](const InstanceRef& instance) {
    const auto found = others_.find(instance);
    return found == others_.end() ? Others() : found->second;
  };
  const uint64_t chain_used = used(pair.chain.stage0);
  const uint64_t decode_used = used(pair.decode);
  const bool again = request.failed.has_value() && UsesFailed(pair, *request.failed);
  // If the connection between the two fails, each end blames the other.
  const bool between = request.failed.has_value() && !again &&
                       (SameDecode(pair, request.failed->pair) ||
                        pair.chain.stages == request.failed->pair.chain.stages);
  const bool no_room = !HasRoom(request, pair, room);
  if (limits_.policy != router::Policy::kRoundRobin &&
      limits_.policy != router::Policy::kLeastLoad) {
    return {again, no_room, false, false, 0, 0, 0, 0};  // What all policies must heed.
  }
  if (limits_.policy == router::Policy::kRoundRobin) {
    return {again, no_room, false, between, 0, 0, chain_used, decode_used};
  }
  const Work chain = WorkOn(pair.chain.stage0);
  const Work decode = WorkOn(pair.decode);
  const Others others = others_on(pair.decode);
  const int own = pair.colocated() ? decode.chain_requests : decode.decode_requests;
  const int requests = own + others.requests;
  const int64_t tokens = decode.context_tokens + others.context_tokens + request.ContextIn(pair);
  const bool full = requests >= pair.decode_slots || tokens > pair.decode_capacity_tokens;
  const int64_t before = chain.prompt_tokens + others_on(pair.chain.stage0).prompt_tokens;
  return {again, no_room, full, between, before, requests, chain_used, decode_used};
}

// If a worker was full, what else the router knows of it decides too.
void RouterWitness::CheckChoice(const Request& request, const router::Pair& chosen) {
  if (!HasRoom(request, chosen, Room::kPossible)) {
    return Complain(request.asked.call_id,
                    "reserves pages for which, or for what runs by which, "
                    "there is no room");
  }
  const bool decode_capped =
      !chosen.colocated() && IsCapped(chosen.decode, WorkOn(chosen.decode).decode_requests);
  if (decode_capped || IsCapped(chosen.chain.stage0, WorkOn(chosen.chain.stage0).chain_requests)) {
    return Complain(request.asked.call_id, "is given to who has asked not to be asked yet");
  }
  if (anybody_fails_) return;
  const std::vector<router::Pair>& pairs = members_.Pairs();
  const bool others = request.failed.has_value() &&
                      std::any_of(pairs.begin(), pairs.end(), [&](const router::Pair& pair) {
                        return !SamePair(pair, request.failed->pair);
                      });
  if (others && SamePair(chosen, request.failed->pair)) {
    return Complain(request.asked.call_id, "is given the pair again that has failed it");
  }
  const int64_t context_tokens = int64_t{request.asked.prompt_tokens} + request.asked.max_tokens;
  if (request.asked.prompt_tokens + request.drawn > chosen.chain.max_prompt_tokens ||
      context_tokens > chosen.max_context_tokens) {
    return Complain(request.asked.call_id, "is given a pair that it does not fit");
  }
  const Cost cost = CostOf(request, chosen, Room::kPossible);
  for (const router::Pair& pair : pairs) {
    if (limited_.contains(pair.decode) || limited_.contains(pair.chain.stage0)) return;
    if (others && SamePair(pair, request.failed->pair)) continue;
    const bool fits = request.asked.prompt_tokens + request.drawn <= pair.chain.max_prompt_tokens &&
                      context_tokens <= pair.max_context_tokens;
    if (!fits || cost <= CostOf(request, pair, Room::kCertain)) continue;
    return Complain(request.asked.call_id,
                    absl::StrCat("is given ", chosen.chain.chain_id, " and ", chosen.decode.id,
                                 ", better were ", pair.chain.chain_id, " and ", pair.decode.id));
  }
}

}  // namespace baton::sim

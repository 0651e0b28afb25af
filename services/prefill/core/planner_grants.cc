// Requests whose prompt others read. They are granted pages, to which its writers send KV, and are
// decoded from the commit on, like those that the chain has read itself.
//
// A grant stands on every member's lease table (common/kv/lease_table.h), for its own layers and
// heads, before anybody has its ticket, and counts as committed when every member says so. With
// that it is revoked: nothing is written any more, and a writer that asks again is told that it is
// over. A request's pages come free when every member has drained its grant and every stage has
// closed it. So no late write meets another owner's page, on any stage.
//
// Grants go out between plans, in the order of turns, as soon as there is room: a ticket waits for
// no step. Their room is a place, a slot, and pages as for any prompt. What gives way with a ticket
// is read here later (planner_growth.cc), and its writers are told that it is over.
//
// KV of one number of ranks is equal to the last bit, and that of another is not, so the cache
// keeps them apart, and keeps of foreign prompts what the writers wrote alone.
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "common/kv/head_routes.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {
namespace {

// The last stage's rank 0, in whatever order they are named.
const std::string& WhoDraws(const std::vector<KvWriter>& writers, int layers) {
  return std::find_if(writers.begin(), writers.end(),
                      [layers](const KvWriter& writer) {
                        return writer.layers.end == layers && writer.tensor_rank.rank == 0;
                      })
      ->instance.id;
}

// Each stage's; one alone has all.
std::vector<LayerRange> LayersOf(const ChainUp& up, int layers) {
  if (up.stages == 1) return {{0, layers}};
  std::vector<LayerRange> of_stages;
  int begin = 0;
  for (const int count : up.stage_layers) {
    of_stages.push_back({begin, begin + count});
    begin += count;
  }
  BATON_CHECK(static_cast<int>(of_stages.size()) == up.stages && begin == layers)
      << of_stages.size() << " of " << up.stages << " stages have " << begin << " of " << layers
      << " layers";
  return of_stages;
}

}  // namespace

// What is left of the last epoch's grants was drained before this one began.
void ChainPlanner::State::BeginGrants(const ChainUp& event) {
  if (limits.granting.id.empty()) return;
  const int others = event.stages * event.ranks - 1;
  BATON_CHECK(static_cast<int>(event.followers.size()) == others)
      << event.stages << " stages, " << event.followers.size() << " followers";
  granted_layers = LayersOf(event, limits.layers);
  followers = event.followers;
  last_generation = std::max(last_generation, event.newest_generation);
  grants.clear();
  found_too_few = {};
  free_slots.clear();
  for (int slot = 0; slot < limits.max_open_requests; ++slot) {
    free_slots.push_back(static_cast<uint32_t>(slot));
  }
}

void ChainPlanner::State::AdmitGrants(int64_t now_us) {
  while (up && GrantNext(now_us)) {
  }
}

bool ChainPlanner::State::GrantNext(int64_t now_us) {
  if (queue.empty() || free_slots.empty() || !IsGranted(queue.front())) return false;
  const uint64_t attempt_id = queue.front();
  if (rows_in_want > 0) return false;
  const std::tuple found{attempt_id, pool->free_pages(), tree.has_value() ? tree->pages() : 0,
                         open.size()};
  if (found_too_few == found) return false;
  if (!MayAdmitOldest()) {
    found_too_few = found;
    return false;
  }
  Request& request = requests.at(attempt_id);
  if (request.tokens != nullptr) request.match = MatchOf(request);
  Open(attempt_id, now_us);
  request.closed.assign(static_cast<size_t>(members()), true);
  request.computed_tokens = 0;
  reused_pages_total += static_cast<uint64_t>(request.prefix.pages);
  Grant& grant = request.grant.emplace(Grant{});
  grant.slot = free_slots.front();
  free_slots.pop_front();
  grant.generation = ++last_generation;
  grant.not_granted = grant.not_committed = grant.not_drained = MembersLeft(members());
  grant.not_granted.Strike(0);
  grants.emplace(grant.generation, attempt_id);
  const auto prompt_end = request.pages.begin() + PagesFor(request.prompt_tokens);
  for (int member = 0; member < members(); ++member) {
    GrantKv action;
    action.member = member;
    action.grant.slot = grant.slot;
    action.grant.generation = grant.generation;
    action.grant.pages.assign(request.pages.begin(), prompt_end);
    action.grant.first_page = request.prefix.pages;
    action.grant.writers =
        WritersTo(request.writers, limits.kv_heads,
                  {granted_layers[static_cast<size_t>(member / ranks)], {member % ranks, ranks}});
    Emit(std::move(action));  // Without a deadline, which the planner sees to.
  }
  if (grant.not_granted.none()) GiveTicket(attempt_id, request);
  return true;
}

void ChainPlanner::State::GiveTicket(uint64_t attempt_id, Request& request) {
  request.has_ticket = true;
  Ticket ticket;
  ticket.decode = limits.granting;
  ticket.slot = request.grant->slot;
  ticket.generation = request.grant->generation;
  ticket.prompt_tokens = request.prompt_tokens;
  ticket.prompt_pages = PagesFor(request.prompt_tokens);
  ticket.first_page = request.prefix.pages;
  ticket.followers = followers;
  if (granted_layers.size() > 1) ticket.stages = granted_layers;
  Emit(HandOutTicket{attempt_id, std::move(ticket)});
}

// The request of a grant that is not revoked.
ChainPlanner::State::Request* ChainPlanner::State::HolderOf(uint32_t slot, uint64_t generation,
                                                            uint64_t& attempt_id) {
  const auto found = grants.find(generation);
  if (found == grants.end()) return nullptr;
  attempt_id = found->second;
  Request& request = requests.at(attempt_id);
  BATON_CHECK(request.grant->slot == slot)
      << "generation " << generation << " is of slot " << request.grant->slot << ", not " << slot;
  return request.grant->revoked ? nullptr : &request;
}

void ChainPlanner::State::On(const MemberGranted& event, int64_t /*now_us*/) {
  uint64_t attempt_id = 0;
  Request* const request = HolderOf(event.slot, event.generation, attempt_id);
  if (request == nullptr) return;
  MembersLeft& left = request->grant->not_granted;
  if (left.Strike(event.member) && left.none()) {
    GiveTicket(attempt_id, *request);
  }
}

void ChainPlanner::State::On(const KvHeard& event, int64_t now_us) {
  if (const auto* committed = std::get_if<KvCommitted>(&event.event)) {
    HeardCommitted(event.member, *committed, now_us);
  } else if (const auto* failed = std::get_if<KvFailed>(&event.event)) {
    uint64_t attempt_id = 0;
    if (HolderOf(failed->slot, failed->generation, attempt_id) != nullptr) {
      Fail(attempt_id, failed->status);
    }
  } else {
    HeardDrained(event.member, std::get<KvDrained>(event.event));
  }
}

// The first token is the one that the last stage's rank 0 has, which draws those behind it: the
// writing chain's last stage has layers and heads for it.
void ChainPlanner::State::HeardCommitted(int member, const KvCommitted& event, int64_t now_us) {
  uint64_t attempt_id = 0;
  Request* const request = HolderOf(event.slot, event.generation, attempt_id);
  if (request == nullptr || !request->grant->not_committed.Strike(member)) return;
  if (member == WhoDrawsHere()) request->grant->first_token = event.first_token;
  if (request->grant->not_committed.none()) {
    Commit(attempt_id, *request, now_us);
  } else {
    Covered<"planner: a member has its KV before another one">();
  }
}

void ChainPlanner::State::Commit(uint64_t attempt_id, Request& request, int64_t now_us) {
  if (!request.grant->first_token.has_value()) {  // Its table demands one; its report lost it.
    return Fail(attempt_id, absl::InternalError("the KV is here without the first token"));
  }
  const SampledToken first = *request.grant->first_token;
  if (first.token < 0 || first.token >= limits.vocab_size) {
    Covered<"planner: a first token is outside the vocabulary">();
    return Fail(attempt_id, WithLeg(absl::InternalError(absl::StrCat(
                                        "first token ", first.token,
                                        " is outside the vocabulary of ", limits.vocab_size)),
                                    "prefill", WhoDraws(request.writers, limits.layers)));
  }
  Revoke(request);
  request.writers.clear();
  if (request.tokens != nullptr) {
    tree->Extend(request.cache_salt, *request.tokens, request.pages, request.prefix);
  }
  request.drawn_us = now_us;
  if (TakeToken(attempt_id, request, first)) ready.push_back(attempt_id);
}

void ChainPlanner::State::Revoke(Request& request) {
  if (!request.grant.has_value() || std::exchange(request.grant->revoked, true)) return;
  Emit(RevokeKv{request.grant->slot, request.grant->generation});
}

void ChainPlanner::State::HeardDrained(int member, const KvDrained& event) {
  const auto found = grants.find(event.generation);
  if (found == grants.end()) return;  // It is an older epoch's.
  const uint64_t attempt_id = found->second;
  Request& request = requests.at(attempt_id);
  BATON_CHECK(request.grant->slot == event.slot && request.grant->revoked)
      << "generation " << event.generation << " of slot " << event.slot << " was not revoked";
  if (!request.grant->not_drained.Strike(member) || !request.grant->not_drained.none()) return;
  free_slots.push_back(event.slot);
  grants.erase(found);
  request.grant.reset();
  ReleaseIfClosed(attempt_id);
}

// The stages hear of it with its first decode step.
void ChainPlanner::State::Tell(uint64_t attempt_id, Request& request, Plan& plan) {
  request.told = true;
  request.closed.assign(static_cast<size_t>(members()), false);
  request.new_page = -1;
  plan.opens.push_back(
      {attempt_id, std::nullopt, request.pages, request.prompt_tokens, request.prompt_tokens, {}});
}

// They have lost nothing and begin elsewhere. Rejected: to let them wait on, for pages of a service
// that gets emptier anyway; their time would come late in the drain's, or not at all.
void ChainPlanner::State::HandBackWaiting() {
  for (const uint64_t attempt_id : std::vector<uint64_t>(queue.begin(), queue.end())) {
    if (!IsGranted(attempt_id)) continue;
    Covered<"planner: a drain hands back">();
    ++drain_counts.handed_back_total;
    Fail(attempt_id, EndedByDrain(absl::UnavailableError(absl::StrCat(
                         "this ", limits.name, " drains, and had not begun the request"))));
  }
}

// When its deadline passes.
const char* ChainPlanner::State::WhatItAwaits(const Request& request) const {
  if (limits.granting.id.empty()) {
    return request.open ? "in the prefill chain" : "while waiting for prefill";
  }
  if (!request.open) return "while waiting for pages";
  if (request.writers.empty()) return "while decoding";
  return !request.grant->not_granted.none()
             ? "while waiting for all of the service to take the prompt's KV"
             : "while waiting for the prompt's KV";
}

}  // namespace baton::prefill

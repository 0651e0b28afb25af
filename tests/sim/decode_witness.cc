#include "tests/sim/decode_witness.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/content.h"

namespace baton::sim {

DecodeWitness::Session* DecodeWitness::Find(uint64_t attempt_id) {
  const auto found = sessions_.find(attempt_id);
  return found == sessions_.end() ? nullptr : &found->second;
}

const Oracle::Sequence* DecodeWitness::SequenceOf(uint64_t attempt_id) const {
  const auto found = prompts_.find(attempt_id);
  return found == prompts_.end() ? nullptr : &oracle_.Of(found->second);
}

const Oracle::Sequence* DecodeWitness::SequenceOfGrant(uint64_t generation) const {
  const auto found = grants_.find(generation);
  if (found == grants_.end() || found->second.revoked) return nullptr;
  return SequenceOf(found->second.attempt_id);
}

std::set<int> DecodeWitness::AllMembers(int first) const {
  std::set<int> members;
  for (int member = first; member < topology_.decode_members(); ++member) members.insert(member);
  return members;
}

void DecodeWitness::Complain(uint64_t attempt_id, const std::string& what) {
  world_.Violate(absl::StrCat(self_.id, ", attempt ", attempt_id, ": ", what));
}

void DecodeWitness::MustEnd(uint64_t attempt_id) {
  if (Find(attempt_id) != nullptr) ends_due_.insert(attempt_id);
}

// ---- Events ----

void DecodeWitness::Before(const prefill::PlannerEvent& event) {
  ends_due_.clear();
  asked_.reset();
  std::visit([this](const auto& e) { Hear(e); }, event);
}

void DecodeWitness::Hear(const prefill::StartRequested& event) {
  Session& session = sessions_[event.attempt_id];
  prompts_[event.attempt_id] = prompt_id_;
  session.sequence = &oracle_.Of(prompt_id_);
  session.request = event;
  session.order = ++arrivals_;
  session.read_here = event.writers.empty();
  asked_ = event.attempt_id;
  if (!up_ || draining_ || session.sequence->pages > page_count_ ||
      event.prompt_tokens >= topology_.max_context_tokens) {
    MustEnd(event.attempt_id);
  }
}

// What has not begun is handed back.
void DecodeWitness::Hear(const prefill::DrainBegan&) {
  if (std::exchange(draining_, true)) return;
  for (const auto& [attempt_id, session] : sessions_) {
    if (session.generation == 0 && !session.request.writers.empty()) MustEnd(attempt_id);
  }
}

void DecodeWitness::Hear(const prefill::ChainUp& event) {
  if (std::exchange(up_, true)) world_.Violate(self_.id + " comes up twice");
  page_count_ = event.page_count;
  epoch_ = event.epoch;
  last_generation_ = std::max(last_generation_, event.newest_generation);
  if (event.page_count != topology_.decode_pages ||
      static_cast<int>(event.followers.size()) != topology_.decode_members() - 1) {
    world_.Violate(self_.id + ": ranks join with other numbers than they have said");
  }
}

void DecodeWitness::Hear(const prefill::ChainDown&) {
  if (!std::exchange(up_, false)) return;
  for (const auto& [attempt_id, session] : sessions_) MustEnd(attempt_id);
  grants_.clear();
  granted_pages_.clear();
}

void DecodeWitness::Hear(const prefill::MemberGranted& event) {
  const auto found = grants_.find(event.generation);
  if (found != grants_.end()) found->second.not_granted.erase(event.member);
}

void DecodeWitness::Hear(const prefill::KvHeard& event) {
  const uint64_t generation = std::visit([](const auto& e) { return e.generation; }, event.event);
  const auto found = grants_.find(generation);
  if (found == grants_.end()) return;
  Grant& grant = found->second;
  if (std::holds_alternative<KvDrained>(event.event)) {
    if (!grant.revoked) world_.Violate(self_.id + ": a grant drains that was not revoked");
    grant.not_drained.erase(event.member);
    if (!grant.not_drained.empty()) return;
    for (const int page : grant.pages) {
      if (granted_pages_.at(page) == generation) granted_pages_.erase(page);
    }
    grants_.erase(found);
    return;
  }
  if (grant.revoked) return;  // It is over, whatever is said.
  if (std::holds_alternative<KvFailed>(event.event)) return MustEnd(grant.attempt_id);
  grant.not_committed.erase(event.member);
  const auto& committed = std::get<KvCommitted>(event.event);
  if (event.member == topology_.decode_members() - topology_.decode_ranks) {
    grant.bad_token = !IsInVocabulary(committed.first_token->token);
  }
  if (grant.not_committed.empty() && grant.bad_token) MustEnd(grant.attempt_id);
}

void DecodeWitness::Hear(const prefill::StagePlanDone& event) {
  if (!up_ || event.epoch != epoch_) return;
  for (const prefill::DrawnToken& drawn : event.done.drawn) {
    if (drawn.token.ok() && IsInVocabulary(drawn.token->token)) continue;
    may_end_.insert(drawn.attempt_id);
    if (topology_.decode_ranks == 1) MustEnd(drawn.attempt_id);
  }
}

// ---- What it does ----

void DecodeWitness::After(const std::vector<prefill::PlannerAction>& actions,
                          const prefill::ChainPlanner& planner) {
  for (const prefill::PlannerAction& action : actions) {
    std::visit([this](const auto& a) { See(a); }, action);
    if (!world_.violation().empty()) return;  // What follows would rest on it.
  }
  for (const uint64_t attempt_id : ends_due_) {
    if (Find(attempt_id) != nullptr) Complain(attempt_id, "I2: must end, and was not told");
  }
  for (const auto& [attempt_id, session] : sessions_) {
    if (world_.now_us() >= session.request.deadline_us) {
      Complain(attempt_id, "I2: goes on after its deadline");
    }
    if (session.generation == 0 || session.ticket || session.read_here) continue;
    const auto grant = grants_.find(session.generation);
    if (grant != grants_.end() && !grant->second.revoked && grant->second.not_granted.empty()) {
      Complain(attempt_id, "is granted on every rank and has no ticket");
    }
  }
  CheckWaiting(planner);
}

// Where nothing is open, nothing can be waited for.
void DecodeWitness::CheckWaiting(const prefill::ChainPlanner& planner) {
  if (!up_) return;
  const prefill::PlannerLoad load = planner.load();
  if (load.queued > 0 && load.open == 0 && load.plans_in_flight == 0) {
    world_.Violate(absl::StrCat(self_.id, ": ", load.queued, " requests wait, and none is open"));
  }
  if (load.owned_pages + load.free_pages != page_count_) {
    world_.Violate(absl::StrCat("I1: ", self_.id, " has ", load.owned_pages, " and ",
                                load.free_pages, " pages of ", page_count_));
  }
}

// One grant per member, the first one's first, for the request that has waited longest.
void DecodeWitness::See(const prefill::GrantKv& action) {
  const uint64_t generation = action.grant.generation;
  if (action.member > 0) {
    const auto first = grants_.find(generation);
    if (first == grants_.end()) return world_.Violate(self_.id + ": a rank is granted alone");
    return CheckGrant(sessions_.at(first->second.attempt_id), first->second, action);
  }
  if (generation <= last_generation_) {
    world_.Violate(absl::StrCat(self_.id, ": generation ", generation, " is used again"));
  }
  last_generation_ = generation;
  const auto oldest =
      std::min_element(sessions_.begin(), sessions_.end(), [](const auto& one, const auto& two) {
        return std::pair(one.second.begun(), one.second.order) <
               std::pair(two.second.begun(), two.second.order);
      });
  if (oldest == sessions_.end() || oldest->second.begun()) {
    return world_.Violate(self_.id + ": a grant without a request");
  }
  const uint64_t attempt_id = oldest->first;
  Session& session = oldest->second;
  for (const auto& [other, grant] : grants_) {
    if (grant.slot == action.grant.slot) Complain(attempt_id, "has another's slot");
  }
  session.generation = generation;
  session.opened = true;
  Grant& grant = grants_[generation];
  grant = {attempt_id,
           action.grant.slot,
           action.grant.pages,
           AllMembers(1),
           AllMembers(0),
           AllMembers(0),
           false,
           false};
  CheckGrant(session, grant, action);
  for (const int page : grant.pages) {
    if (!granted_pages_.emplace(page, generation).second) {
      Complain(attempt_id, absl::StrCat("is granted page ", page, ", which may be written to"));
    }
  }
}

void DecodeWitness::CheckGrant(const Session& session, const Grant& grant,
                               const prefill::GrantKv& action) {
  const uint64_t attempt_id = session.request.attempt_id;
  if (action.grant.slot != grant.slot || action.grant.pages != grant.pages) {
    Complain(attempt_id, "is granted differently on two ranks");
  }
  if (static_cast<int>(grant.pages.size()) != session.sequence->prompt_pages) {
    Complain(attempt_id, absl::StrCat("has ", grant.pages.size(), " pages granted, for ",
                                      session.sequence->prompt_pages));
  }
  std::vector<KvWriter> writers;
  for (const KvWriter& writer : session.request.writers) {
    const LayerRange sent = topology_.SentTo(writer.layers, writer.tensor_rank.rank, action.member);
    if (sent.size() > 0) writers.push_back({writer.instance, sent, writer.tensor_rank});
  }
  if (action.grant.writers != writers) Complain(attempt_id, "is granted to other writers");
}

void DecodeWitness::See(const prefill::HandOutTicket& action) {
  Session* const session = Find(action.attempt_id);
  if (session == nullptr || session->ticket || session->generation == 0) {
    return Complain(action.attempt_id, "has a ticket twice, or unasked");
  }
  session->ticket = true;
  const Ticket& ticket = action.ticket;
  const auto grant = grants_.find(ticket.generation);
  const bool granted = grant != grants_.end() && ticket.generation == session->generation &&
                       grant->second.slot == ticket.slot && grant->second.not_granted.empty();
  if (!granted) Complain(action.attempt_id, "has a ticket that not every rank knows of");
  if (ticket.decode != self_ || ticket.prompt_tokens != session->sequence->inputs.prompt_tokens ||
      ticket.prompt_pages != session->sequence->prompt_pages ||
      ticket.places() != topology_.decode_members() || ticket.ranks() != topology_.decode_ranks) {
    Complain(action.attempt_id, "has another's ticket");
  }
}

void DecodeWitness::See(const prefill::RevokeKv& action) {
  const auto found = grants_.find(action.generation);
  if (found == grants_.end() || found->second.revoked || found->second.slot != action.slot) {
    return world_.Violate(absl::StrCat(self_.id, " revokes generation ", action.generation,
                                       ", which is not granted"));
  }
  found->second.revoked = true;
  Session* const session = Find(found->second.attempt_id);
  if (session != nullptr && !IsCommitted(*session)) {
    if (ends_due_.contains(found->second.attempt_id)) return;
    SeeRetraction(*session);
  }
}

bool DecodeWitness::IsCommitted(const Session& session) const {
  const auto grant = grants_.find(session.generation);
  return session.generation != 0 && (grant == grants_.end() || grant->second.not_committed.empty());
}

// Not by its end.
void DecodeWitness::SeeRetraction(Session& session) {
  const uint64_t attempt_id = session.request.attempt_id;
  const bool is_oldest = std::none_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.second.opened && entry.second.order < session.order;
  });
  if (is_oldest) Complain(attempt_id, "gives way, and is the oldest that may");
  session.opened = session.told = false;
  if (session.ticket) {
    session.read_here = true;
  } else {
    session.generation = 0;  // It waits for another grant.
  }
}

// A token comes of a commit, or of what was read here.
void DecodeWitness::See(const prefill::DeliverToken& action) {
  Session* const session = Find(action.attempt_id);
  if (session == nullptr) return Complain(action.attempt_id, "has a token after its end");
  if (!session->read_here && !IsCommitted(*session)) {
    Complain(action.attempt_id, "I3: has a token before its commit");
  }
  const std::vector<SampledToken>& answer = session->sequence->answer;
  const auto index = static_cast<size_t>(session->delivered++);
  if (index >= answer.size() || action.token != answer[index]) {
    Complain(action.attempt_id, absl::StrCat("token ", index, " is not that of the answer"));
  }
}

void DecodeWitness::See(const prefill::FinishRequest& action) {
  Session* const session = Find(action.attempt_id);
  if (session == nullptr) return Complain(action.attempt_id, "I2: ends twice");
  CheckEnd(*session, action);
  sessions_.erase(action.attempt_id);
}

void DecodeWitness::CheckEnd(const Session& session, const prefill::FinishRequest& action) {
  const uint64_t attempt_id = action.attempt_id;
  if (action.status.ok()) {
    const bool whole = session.delivered == static_cast<int>(session.sequence->answer.size());
    if (!whole || action.reason != session.sequence->reason) {
      Complain(attempt_id, "is called complete, and is not");
    }
    return;
  }
  const bool due = ends_due_.contains(attempt_id) || may_end_.contains(attempt_id) ||
                   world_.now_us() >= session.request.deadline_us || draining_ ||
                   (asked_ == attempt_id && IsOverloaded(action.status));
  if (!due) Complain(attempt_id, "ends for no reason: " + action.status.ToString());
}

// ---- Plans ----

void DecodeWitness::See(const prefill::IssuePlan& action) {
  for (const uint64_t attempt_id : action.plan.aborts) {
    Session* const session = Find(attempt_id);
    if (session != nullptr) SeeRetraction(*session);
  }
  for (const prefill::PlanOpen& open : action.plan.opens) {
    Session* const session = Find(open.attempt_id);
    if (session == nullptr) return Complain(open.attempt_id, "is opened after its end");
    SeeOpen(*session, open);
  }
  for (const prefill::PlanItem& item : action.plan.items) {
    Session* const session = Find(item.attempt_id);
    if (session == nullptr) return Complain(item.attempt_id, "is planned after its end");
    SeeItem(*session, item);
  }
}

void DecodeWitness::SeeOpen(Session& session, const prefill::PlanOpen& open) {
  if (std::exchange(session.told, true)) Complain(open.attempt_id, "is opened twice");
  session.opened = true;
  // It gave way before any stage knew of it.
  if (!open.adopted() && IsCommitted(session)) {
    session.read_here = true;
  }
  if (open.prompt_tokens() != session.sequence->inputs.prompt_tokens || open.ticket.has_value()) {
    Complain(open.attempt_id, "is opened for another prompt");
  }
  if (open.adopted() == session.read_here) {
    Complain(open.attempt_id, "is read by the wrong side");
  }
  std::vector<int32_t> text;
  if (!open.adopted()) {
    for (int i = 0; i < session.delivered; ++i) {
      text.push_back(session.sequence->answer[static_cast<size_t>(i)].token);
    }
  }
  if (open.drawn != text) Complain(open.attempt_id, "is read again with another text");
  CheckPages(session, open.pages, session.generation);
}

// None that a late write may still meet.
void DecodeWitness::CheckPages(const Session& session, const std::vector<int>& pages,
                               uint64_t owner) {
  for (const int page : pages) {
    const auto found = granted_pages_.find(page);
    const bool own = found != granted_pages_.end() && found->second == owner && !session.read_here;
    if (found != granted_pages_.end() && !own) {
      Complain(session.request.attempt_id,
               absl::StrCat("has page ", page, ", which may be written to"));
    }
  }
}

void DecodeWitness::SeeItem(Session& session, const prefill::PlanItem& item) {
  const int prompt = session.sequence->inputs.prompt_tokens;
  if (item.token_begin < prompt + session.delivered - 1 || session.delivered == 0) return;
  const SampledToken& fed = session.sequence->answer[static_cast<size_t>(session.delivered - 1)];
  // Or the one behind it, which a plan draws that runs.
  const bool ahead = item.token == prefill::kTokenAhead;
  const bool right = item.token_count == 1 && item.draws && (ahead || item.token == fed.token) &&
                     item.token_begin == prompt + session.delivered - (ahead ? 0 : 1);
  // Read again, it ends with the token that was told last.
  const bool reads = session.read_here &&
                     item.token_begin + item.token_count == prompt + session.delivered &&
                     item.draws;
  if (!right && !reads) Complain(item.attempt_id, "is fed another token than its last");
  if (item.new_page >= 0) CheckPages(session, {item.new_page}, session.generation);
}

}  // namespace baton::sim

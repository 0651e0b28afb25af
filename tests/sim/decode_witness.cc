#include "tests/sim/decode_witness.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "tests/sim/content.h"

namespace baton::sim {

DecodeWitness::DecodeWitness(World& world, const Topology& topology, Oracle& oracle,
                             InstanceRef self)
    : world_(world),
      topology_(topology),
      oracle_(oracle),
      self_(std::move(self)),
      joined_(topology.decode_ranks == 1) {}

const Oracle::Sequence& DecodeWitness::SequenceOf(uint64_t attempt_id) const {
  return *sessions_.at(attempt_id).sequence;
}

const Oracle::Sequence* DecodeWitness::SequenceOfGrant(uint64_t generation) const {
  const auto grant = grants_.find(generation);
  return grant == grants_.end() ? nullptr : sessions_.at(grant->second).sequence;
}

std::optional<uint64_t> DecodeWitness::WaitsWith(uint64_t attempt_id) const {
  const auto found = sessions_.find(attempt_id);
  if (found == sessions_.end() || found->second.ticket) return std::nullopt;
  return found->second.generation;
}

DecodeWitness::Session* DecodeWitness::Find(uint64_t attempt_id) {
  const auto found = sessions_.find(attempt_id);
  return found == sessions_.end() ? nullptr : &found->second;
}

DecodeWitness::Session* DecodeWitness::FindGrant(uint64_t generation) {
  const auto grant = grants_.find(generation);
  return grant == grants_.end() ? nullptr : &sessions_.at(grant->second);
}

void DecodeWitness::Complain(uint64_t attempt_id, const std::string& what) {
  world_.Violate(absl::StrCat(self_.id, ", attempt ", attempt_id, ": ", what));
}

// ---- Events ----

void DecodeWitness::Before(const decode::Event& event) {
  ended_.clear();
  generation_before_ = last_generation_;
  youngest_grown_ = 0;
  std::visit([this](const auto& e) { Hear(e); }, event);
}

void DecodeWitness::Hear(const decode::ReserveRequested& event) {
  BATON_CHECK(!sessions_.contains(event.attempt_id)) << "the shell refuses a second reservation";
  Session& session = sessions_[event.attempt_id];
  session.sequence = &oracle_.Of(prompt_id_);
  session.request = event;
  session.must_be_refused = ForgetOne(early_aborts_, event.attempt_id) || draining_ || !joined_ ||
                            event.prompt_tokens >= topology_.max_context_tokens ||
                            event.deadline_us <= world_.now_us() ||
                            session.sequence->pages > page_count();
  // Without a queue only who need not wait is taken.
  const bool waits = !waiting_.empty() || !HasRoomFor(session);
  session.queue_full = !session.must_be_refused && waits &&
                       static_cast<int>(waiting_.size()) >= topology_.max_queued;
  session.must_be_refused |= session.queue_full;
  asked_ = event.attempt_id;
  waiting_.push_back(event.attempt_id);
}

void DecodeWitness::Hear(const decode::StreamOpened& event) {
  opened_ = event;
  Session* const session = Find(event.attempt_id);
  if (session == nullptr) {
    refusal_due_ = draining_ ? absl::StatusCode::kUnavailable : absl::StatusCode::kNotFound;
  } else if (!session->ticket || session->generation != event.generation) {
    refusal_due_ = absl::StatusCode::kFailedPrecondition;
  } else if (session->stream_open) {
    refusal_due_ = absl::StatusCode::kAlreadyExists;
  } else {
    session->stream_open = true;
    if (session->sampled > 0) tokens_due_.insert(event.attempt_id);
  }
}

void DecodeWitness::Hear(const decode::AbortRequested& event) {
  if (Find(event.attempt_id) == nullptr) {
    early_aborts_.push_back(event.attempt_id);
    if (early_aborts_.size() > topology_.remembered) early_aborts_.pop_front();
  } else {
    failures_due_.insert(event.attempt_id);
  }
}

void DecodeWitness::Hear(const decode::StepFinished& event) {
  if (running_step_ != event.step) world_.Violate("a step ends that was not running");
  running_step_.reset();
  part_due_ = !event.status.ok() && topology_.decode_ranks > 1;
  for (const auto& [generation, attempt_id] : std::exchange(in_step_, {})) {
    if (holds_.contains(generation)) ReleaseIfUnused(generation);
    Session* const session = FindGrant(generation);
    if (session == nullptr) continue;  // Ended meanwhile.
    const auto output =
        std::find_if(event.outputs.begin(), event.outputs.end(),
                     [attempt = attempt_id](const auto& out) { return out.attempt_id == attempt; });
    if (!event.status.ok() || output == event.outputs.end() || !output->token.ok() ||
        !IsInVocabulary(output->token->token)) {
      failures_due_.insert(attempt_id);
      continue;
    }
    ++session->sampled;
    tokens_due_.insert(attempt_id);
  }
}

void DecodeWitness::Hear(const decode::DrainBegan& /*event*/) { draining_ = true; }

void DecodeWitness::Hear(const decode::Tick& /*event*/) {}

void DecodeWitness::Hear(const KvCommitted& event) { HearCommitted(0, event); }

void DecodeWitness::Hear(const KvFailed& event) {
  if (FindGrant(event.generation) != nullptr) revokes_due_.insert(event.generation);
}

void DecodeWitness::Hear(const KvDrained& event) {
  const auto hold = holds_.find(event.generation);
  if (hold == holds_.end() || !hold->second.not_drained.contains(0)) {
    world_.Violate(absl::StrCat(self_.id, ": generation ", event.generation,
                                " drains twice, or was not revoked"));
    return;
  }
  HearDrained(0, event);
}

// ---- What it does ----

void DecodeWitness::After(const std::vector<decode::Action>& actions,
                          const decode::DecodeCore& core) {
  const decode::RunStep* step = nullptr;  // Is said first, and decided last.
  for (const decode::Action& action : actions) {
    if (const auto* run = std::get_if<decode::RunStep>(&action)) {
      step = run;
    } else {
      std::visit([this](const auto& a) { See(a); }, action);
    }
    if (!world_.violation().empty()) return;  // What follows would rest on it.
  }
  const bool between = !running_step_.has_value();  // Two steps.
  if (step != nullptr) See(*step);
  if (!world_.violation().empty()) return;
  CheckGrowth(between);
  CheckExpected();
  CheckSessions(core.load());
  CheckPages(core.load());
  if (core.may_join() != (!joined_ && holds_.empty())) {
    world_.Violate(self_.id + " says that its ranks may join, or the contrary");
  }
}

void DecodeWitness::See(const decode::ReplyReserve& action) {
  Session* const session = Find(action.attempt_id);
  if (session == nullptr || session->ticket) {
    return Complain(action.attempt_id, "I2: its reservation is answered twice, or unasked");
  }
  if (!action.ticket.ok()) {
    if (session->granted()) Complain(action.attempt_id, "I5: is refused and keeps its pages");
    SeeEnd(session->generation, action.ticket.status());
    if (asked_ == action.attempt_id &&
        (!session->must_be_refused ||
         IsOverloaded(action.ticket.status()) != session->queue_full)) {
      Complain(action.attempt_id, absl::StrCat("is refused for no reason, or another one: ",
                                               action.ticket.status().ToString()));
    }
    tickets_due_.erase(action.attempt_id);
    std::erase(waiting_, action.attempt_id);
    failures_due_.erase(action.attempt_id);
    sessions_.erase(action.attempt_id);
    return;
  }
  if (session->must_be_refused) Complain(action.attempt_id, "has a ticket that it must not have");
  if (tickets_due_.erase(action.attempt_id) == 0) {
    return Complain(action.attempt_id,
                    "has its ticket twice, early or late, or overtakes who has waited longer");
  }
  SeeTicket(*session, *action.ticket);
}

void DecodeWitness::SeeTicket(Session& session, const Ticket& ticket) {
  const uint64_t attempt_id = session.request.attempt_id;
  session.ticket = true;
  session.granted_us = world_.now_us();
  const Oracle::Sequence& sequence = *session.sequence;
  if (session.generation != ticket.generation || session.slot != ticket.slot ||
      ticket.decode != self_ || ticket.followers != followers_) {
    return Complain(attempt_id, "has a ticket that is not its grant's");
  }
  if (ticket.prompt_tokens != sequence.inputs.prompt_tokens ||
      ticket.prompt_pages != sequence.prompt_pages) {
    Complain(attempt_id,
             absl::StrCat("has ", ticket.prompt_pages, " pages on its ticket for a prompt of ",
                          sequence.prompt_pages));
  }
}

void DecodeWitness::See(const decode::RevokeKv& action) {
  Session* const session = FindGrant(action.generation);
  if (session == nullptr || session->slot != action.slot) {
    return world_.Violate(absl::StrCat(self_.id, ": generation ", action.generation,
                                       " is revoked twice, or was not granted"));
  }
  ended_[action.generation] = {
      grants_.at(action.generation), session->request.resumes,
      revokes_due_.contains(action.generation) || (session->sampled > 0 && session->complete()),
      session->runs() && Lacks(*session)};
  session->revoked = true;
  revokes_due_.erase(action.generation);
  grants_.erase(action.generation);
  // Ranks that are lost see to their pages themselves.
  holds_[action.generation] =
      Hold{action.slot, session->pages, joined_ ? AllRanks() : std::set<int>{0}};
}

void DecodeWitness::See(const decode::DeliverToken& action) {
  Session* const session = Find(action.attempt_id);
  if (session == nullptr || !session->stream_open) {
    return Complain(action.attempt_id, "I2: a token after the end, or without a stream");
  }
  tokens_due_.erase(action.attempt_id);
  const auto index = static_cast<size_t>(action.index);
  if (action.index != session->delivered || action.index >= session->sampled) {
    return Complain(action.attempt_id, absl::StrCat("token ", action.index, " comes after ",
                                                    session->delivered, " of ", session->sampled));
  }
  if (action.token != session->sequence->answer[index]) {
    Complain(action.attempt_id, absl::StrCat("token ", action.index, " is wrong"));
  }
  ++session->delivered;
}

void DecodeWitness::See(const decode::RefuseStream& action) {
  if (refusal_due_ != action.status.code() || action.attempt_id != opened_.attempt_id ||
      action.generation != opened_.generation) {
    Complain(action.attempt_id, absl::StrCat("its stream is refused: ", action.status.ToString()));
  }
  refusal_due_.reset();
}

void DecodeWitness::See(const decode::Finish& action) {
  Session* const session = Find(action.attempt_id);
  if (session == nullptr || !session->ticket) {
    return Complain(action.attempt_id, "I2: it ends twice, or before it had a ticket");
  }
  if (session->granted()) Complain(action.attempt_id, "I5: it ends and keeps its pages");
  const bool told_late = session->retracted && IsRetracted(action.outcome.status());
  if (!told_late) SeeEnd(session->generation, action.outcome.status());
  if (action.outcome.ok()) {
    const auto whole = static_cast<int>(session->sequence->answer.size());
    if (session->delivered != whole || *action.outcome != session->sequence->reason) {
      Complain(action.attempt_id,
               absl::StrCat("is complete with ", session->delivered, " of ", whole,
                            " tokens, or for another reason than the right one"));
    }
  } else {
    failures_due_.erase(action.attempt_id);
  }
  sessions_.erase(action.attempt_id);
}

void DecodeWitness::See(const decode::RunStep& action) {
  if (running_step_.has_value() || action.step <= last_step_) {
    return world_.Violate(absl::StrCat(self_.id, ": step ", action.step, " while another runs"));
  }
  running_step_ = last_step_ = action.step;
  for (const auto& sequence : action.sequences) SeeSequence(sequence);
  for (const auto& [attempt_id, session] : sessions_) {
    if (!session.runs() || in_step_.contains(session.generation) || Lacks(session)) continue;
    Complain(attempt_id, "is left out of a step");
  }
}

void DecodeWitness::SeeSequence(const decode::RunStep::Sequence& sequence) {
  Session* const session = Find(sequence.attempt_id);
  if (session == nullptr || !session->runs()) {
    return Complain(sequence.attempt_id, "is in a step and has ended, or lacks its KV or stream");
  }
  if (!in_step_.emplace(session->generation, sequence.attempt_id).second) {
    return Complain(sequence.attempt_id, "is in a step twice");
  }
  const int position = session->sequence->inputs.prompt_tokens + session->sampled - 1;
  const auto pages = static_cast<size_t>(position / topology_.page_size) + 1;
  if (sequence.position != position || sequence.generated != session->sampled ||
      sequence.token !=
          session->sequence->answer[static_cast<size_t>(session->sampled) - 1].token) {
    return Complain(
        sequence.attempt_id,
        absl::StrCat("feeds token ", sequence.token, " at ", sequence.position, " for draw ",
                     sequence.generated, ", expected draw ", session->sampled, " at ", position));
  }
  SeeGrowth(*session, sequence);
  if (sequence.pages.size() != pages) {
    return Complain(sequence.attempt_id, absl::StrCat("steps with ", sequence.pages.size(),
                                                      " pages, its context covers ", pages));
  }
  for (const int page : sequence.pages) {
    if (!Own(page, session->generation)) {
      Complain(sequence.attempt_id, absl::StrCat("I1: steps on page ", page, " of another one"));
    }
  }
}

bool DecodeWitness::Own(int page, uint64_t generation) {
  return owners_.try_emplace(page, generation).first->second == generation;
}

void DecodeWitness::ReleaseIfUnused(uint64_t generation) {
  const auto hold = holds_.find(generation);
  if (!hold->second.not_drained.empty() || in_step_.contains(generation)) return;
  holds_.erase(hold);
  std::erase_if(owners_, [generation](const auto& owner) { return owner.second == generation; });
}

// ---- What must be true afterwards ----

void DecodeWitness::CheckExpected() {
  const Session* const asked = asked_.has_value() ? Find(*asked_) : nullptr;
  if (asked != nullptr && asked->must_be_refused) Complain(*asked_, "is not refused");
  asked_.reset();
  for (const uint64_t attempt_id : std::exchange(tokens_due_, {})) {
    Complain(attempt_id, "a sampled token is not delivered at once");
  }
  for (const uint64_t attempt_id : std::exchange(failures_due_, {})) {
    Complain(attempt_id, "I2: its step failed or it was aborted, and it was not told");
  }
  for (const uint64_t generation : std::exchange(revokes_due_, {})) {
    world_.Violate(absl::StrCat(self_.id, ": generation ", generation,
                                " goes on after its hand-off has failed"));
  }
  if (std::exchange(refusal_due_, {}).has_value()) world_.Violate("a stale stream is not refused");
  if (grant_.has_value()) world_.Violate("a grant that some rank does not hear of");
  for (const uint64_t attempt_id : std::exchange(tickets_due_, {})) {
    Complain(attempt_id, "is granted on every rank and has no ticket");
  }
  if (std::exchange(part_due_, false)) {
    world_.Violate(self_.id + ": a step fails and the ranks go on");
  }
}

void DecodeWitness::CheckSessions(const decode::DecodeLoad& load) {
  int running = 0;
  for (const auto& [attempt_id, session] : sessions_) {
    running += session.runs() && !Lacks(session) ? 1 : 0;
    const bool complete = session.sampled > 0 && session.complete();
    if (complete && (session.granted() || session.stream_open)) {
      Complain(attempt_id, "is complete and goes on");
    }
    if (world_.now_us() >= session.request.deadline_us) {
      Complain(attempt_id, "I2: goes on after its deadline");
    }
    if (!joined_ && !session.revoked) {
      Complain(attempt_id, "is held by a service whose ranks are not together");
    }
    if (session.ticket && !session.stream_open &&
        world_.now_us() >= session.granted_us + topology_.times.stream_lease_us) {
      Complain(attempt_id, "I2: still waits for its stream");
    }
  }
  if (running > 0 && !running_step_.has_value()) {
    world_.Violate(absl::StrCat(self_.id, ": ", running, " sequences wait and no step runs"));
  }
  if (static_cast<int>(waiting_.size()) != load.waiting) {
    world_.Violate(
        absl::StrCat(self_.id, ": ", waiting_.size(), " requests wait, it says ", load.waiting));
  }
  if (waiting_.empty()) return;
  if (draining_) Complain(waiting_.front(), "waits for a service that drains");
  const Session& next = sessions_.at(waiting_.front());
  if (HasRoomFor(next)) {
    Complain(waiting_.front(), "waits although there is room for it");
  }
}

std::pair<int, int> DecodeWitness::CountPages() const {
  int owned = 0;
  for (const auto& [generation, attempt_id] : grants_) {
    owned += sessions_.at(attempt_id).pages;
  }
  int held = 0;
  for (const auto& [generation, hold] : holds_) held += hold.pages;
  return {owned, held};
}

bool DecodeWitness::HasRoomFor(const Session& session) const {
  const auto [owned, held] = CountPages();
  return !rows_want_ && PagesAtFirst(session) <= page_count() - owned - held &&
         static_cast<int>(grants_.size() + holds_.size()) < topology_.max_running;
}

void DecodeWitness::CheckPages(const decode::DecodeLoad& load) {
  const auto [owned, held] = CountPages();
  if (load.owned_pages == owned && load.quarantined_pages == held &&
      load.free_pages == page_count() - owned - held) {
    return;
  }
  world_.Violate(absl::StrCat("I1: ", self_.id, " should own ", owned, " pages and hold ", held,
                              " back, and has ", load.owned_pages, ", ", load.quarantined_pages,
                              " and ", load.free_pages, " free"));
}

}  // namespace baton::sim

#include "tests/sim/decode_process.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/content.h"
#include "tests/sim/router_process.h"
#include "tests/sim/scenario.h"

namespace baton::sim {
namespace {

constexpr double kStaleStream = 0.1;
constexpr double kOutOfOrder = 0.2;

prefill::PlannerLimits LimitsOf(const Topology& topology, int node, const InstanceRef& self) {
  prefill::PlannerLimits limits;
  limits.page_size = topology.page_size;
  limits.chunk_tokens = 2 * topology.page_size;
  limits.plan_window = topology.plan_window + topology.decode_stages - 1;
  limits.max_open_requests = topology.max_running;
  limits.max_queued_requests = topology.max_queued;
  limits.max_context_tokens = topology.max_context_tokens;
  limits.plan_grace_us = topology.times.plan_grace_us;
  limits.vocab_size = kVocabulary;
  limits.decodes = limits.feeds_ahead = true;
  if (topology.reserved_tokens > 0) limits.reserved_decode_tokens = topology.reserved_tokens;
  if (topology.IsColocated(node)) return limits;
  limits.granting = self;
  limits.layers = topology.layers;
  limits.kv_heads = topology.kv_heads;
  limits.name = "decode service";
  return limits;
}

links::WiringOptions WiringOptionsOf(const Topology& topology, int node, const InstanceRef& self) {
  return {DecodePlaceOf(topology, node, self), topology.PagesOf(node), 1,
          topology.activation_credits, topology.times.chain};
}

}  // namespace

DecodeProcess::DecodeProcess(World& world, const Topology& topology, Oracle& oracle,
                             StageGroups& groups, int node, uint64_t incarnation)
    : DecodeRank(world, topology, groups, node, incarnation,
                 {[this](uint64_t attempt) { return witness_.SequenceOf(attempt); },
                  [this](const Oracle::Sequence& sequence, int position) {
                    const int prompt = sequence.inputs.prompt_tokens;
                    if (position < prompt) {
                      return oracle_.TokenAt(sequence.inputs.prompt_id, position);
                    }
                    const auto index = static_cast<size_t>(position - prompt);
                    return static_cast<int64_t>(sequence.answer.at(index).token);
                  },
                  [this](const DecodeSteps::Ended& ended) { HandleStage(ResultOf(ended)); }}),
      oracle_(oracle),
      planner_(LimitsOf(topology, node, self_)),
      book_(topology.times.stream_lease_us, topology.remembered),
      witness_(world, topology, oracle, self_),
      wiring_(world, topology, groups, group_, node, WiringOptionsOf(topology, node, self_),
              /*keeps_reports=*/true,
              {[this](const links::Hello& hello) { return Begin(hello); },
               [this](uint64_t epoch, int page_count) { OnUp(epoch, page_count); },
               [this](const absl::Status& status) { OnDown(status); },
               [this](const prefill::PlannerEvent& report) { HandlePlanner(report); },
               [this](int stage) { return planner_.plans_done(stage); },
               [this](uint64_t epoch) {
                 HandleStage(prefill::NextStageDone{epoch, planner_.plans_done(1)});
               }}) {
  membership_ = std::make_unique<WorkerMembership>(
      world, topology.times, node, RouterProcess::Describe(topology, self_),
      [this] {
        const prefill::PlannerLoad load = planner_.load();
        const bool ready = !planner_.draining() && planner_.up();
        std::vector<uint64_t> linked;
        for (const InstanceRef& member : members_) {
          if (ready) linked.push_back(member.incarnation);
        }
        return WorkerMembership::Status{
            ready,
            router::WorkerLoad{load.open, load.queued, 0, load.free_pages, load.ending_pages},
            drain_ != nullptr && drain_->draining(), linked};
      },
      [this] { OnMembers(); });
  drain_ = std::make_unique<WorkerDrain>(
      world, topology, node, *membership_,
      WorkerDrain::Hooks{
          [this](int64_t deadline_us) { HandlePlanner(prefill::DrainBegan{deadline_us}); },
          [this](std::string& why_not) { return AtRest(why_not); }});
  membership_->Start();
  kv_.Start();
  OnMembers();
}

// What is overdue ends first and by itself, so that a witness knows what an event is to do.
void DecodeProcess::HandleInTurn(const prefill::PlannerEvent& event) {
  if (planner_.NextDeadlineUs() <= world_.now_us()) HandleOne(prefill::Tick{});
  HandleOne(event);
  alarm_.SetOnBusyLoop(std::min(planner_.NextDeadlineUs(), book_.NextDeadlineUs()));
}

void DecodeProcess::HandleOne(const prefill::PlannerEvent& event) {
  if (!world_.violation().empty()) return;  // This event has already violated something.
  witness_.Before(event);
  std::vector<prefill::PlannerAction> actions;
  planner_.Handle(event, world_.now_us(), actions);
  if (std::holds_alternative<prefill::ChainDown>(event)) grants_.EndEpoch();
  FreePages();
  witness_.After(actions, planner_);
  if (!world_.violation().empty()) return;
  for (const prefill::PlannerAction& action : actions) {
    TouchBy(world_, node_, action);
    std::visit([this](const auto& act) { Perform(act); }, action);
  }
}

void DecodeProcess::FreePages() {
  if (planner_.pool() == nullptr) return;
  for (const int page : freed_.Take(*planner_.pool())) {
    FreePage(epoch_, page);
    for (int member = 1; member < topology_.decode_members(); ++member) {
      const int node = topology_.DecodeNode(topology_.DecodeOf(node_), member);
      if (!world_.alive(node)) continue;
      static_cast<DecodeRank*>(world_.process(node))->FreePage(epoch_, page);
    }
  }
}

void DecodeProcess::Wake() {
  for (const uint64_t attempt_id : book_.Expire(world_.now_us())) {
    HandlePlanner(prefill::AbortRequested{attempt_id, book_.TooLate()});
  }
  if (!colocated()) {
    std::erase_if(sessions_, [this](const auto& entry) { return !book_.Holds(entry.first); });
  }
  HandlePlanner(prefill::Tick{});
}

// ---- Calls ----

void DecodeProcess::Reserve(uint64_t call, const SimReserve& request) {
  if (topology_.IsStranger(node_)) {
    return world_.Violate(absl::StrCat(self_.id, " is paired with a chain of another model"));
  }
  // The shell refuses it; no router does this.
  if (book_.Holds(request.attempt_id)) return world_.BreakCall(call);
  book_.Ask(request.attempt_id);
  sessions_[request.attempt_id].reserve_call = call;
  Submit(request);
}

void DecodeProcess::GenerateHere(uint64_t call, const SimReserve& request) {
  sessions_[request.attempt_id].stream_call = call;
  Submit(request);
}

void DecodeProcess::Submit(const SimReserve& request) {
  const Stops stops = StopsOf(request.prompt_id);
  prefill::StartRequested event;
  event.attempt_id = request.attempt_id;
  event.prompt_tokens = request.prompt_tokens;
  event.stop.max_tokens = request.max_tokens;
  event.stop.min_tokens = stops.min_tokens;
  event.stop.ignore_eos = stops.ignore_eos;
  event.stop.eos_ids = {kStopToken};
  if (stops.client_stop) event.stop.stop_ids = {kClientStopToken};
  event.writers = request.writers;
  // Any order will do.
  if (!colocated() && world_.random().Chance(kOutOfOrder)) {
    std::rotate(event.writers.begin(), event.writers.begin() + 1, event.writers.end());
  }
  event.deadline_us = world_.now_us() + request.timeout_us;
  event.prompt_logprobs = request.prompt_logprobs;
  witness_.Begin(request.prompt_id);
  HandlePlanner(event);
}

void DecodeProcess::Generate(uint64_t call, uint64_t attempt_id, uint64_t generation) {
  const auto owed = book_.Open(attempt_id, generation);
  if (!owed.ok()) {
    absl::Status status = owed.status();
    if (absl::IsNotFound(status) && planner_.draining()) {
      status = EndedByDrain(absl::UnavailableError(status.message()));
    }
    return EndStream(call, attempt_id, status);
  }
  sessions_.at(attempt_id) = {0, call};
  for (const SampledToken& token : owed->tokens) SendToken(attempt_id, token);
  if (!owed->outcome.has_value()) return;
  sessions_.erase(attempt_id);
  EndStream(call, attempt_id, *owed->outcome);
}

// As the shell has it from calls, slow readers and failpoints.
void DecodeProcess::Abort(uint64_t attempt_id) {
  absl::Status reason = absl::CancelledError("the router aborted it");
  if (world_.random().Chance(0.2)) reason = absl::OkStatus();
  if (world_.random().Chance(0.2)) reason = absl::ResourceExhaustedError("a slow reader");
  HandlePlanner(prefill::AbortRequested{attempt_id, reason});
  if (colocated()) return;
  book_.ForgetIfOver(attempt_id);
  if (!book_.Holds(attempt_id)) sessions_.erase(attempt_id);
}

void DecodeProcess::CallBroken(uint64_t call) {
  membership_->CallBroken(call);
  group_.CallBroken(call);
  wiring_.CallBroken(call);
  for (const auto& [attempt, session] : sessions_) {
    if (session.reserve_call == call || session.stream_call == call) return Abort(attempt);
  }
}

void DecodeProcess::Perform(const prefill::HandOutTicket& action) {
  const uint64_t attempt_id = action.attempt_id;
  book_.GiveTicket(attempt_id, action.ticket.generation, world_.now_us());
  if (world_.random().Chance(kStaleStream)) {
    OpenStaleStream(attempt_id, action.ticket.generation);
  }
  const uint64_t call = sessions_.at(attempt_id).reserve_call;
  kv_.After([this, call, attempt_id, ticket = action.ticket] {
    world_.AnswerOnCall<RouterProcess>(call, node_, "reserve reply",
                                       [call, attempt_id, ticket](RouterProcess& router) {
                                         router.ReserveReply(call, attempt_id, ticket);
                                       });
  });
}

// A stream of the attempt's former life, or a second one: refused, and the request goes on.
void DecodeProcess::OpenStaleStream(uint64_t attempt_id, uint64_t generation) {
  const int64_t late_us = world_.random().Between(0, world_.random().Chance(0.5) ? 2000 : 500'000);
  world_.After(node_, late_us, "stale stream", [this, attempt_id, generation] {
    const auto session = sessions_.find(attempt_id);
    const bool second = session != sessions_.end() && session->second.stream_call != 0;
    const bool same = second && world_.random().Chance(0.5);
    if (book_.Open(attempt_id, same ? generation : generation - 1).ok()) {
      world_.Violate(absl::StrCat(self_.id, ": a stale stream of attempt ", attempt_id, " opens"));
    }
  });
}

void DecodeProcess::SendToken(uint64_t attempt_id, const SampledToken& token) {
  const uint64_t call = sessions_.at(attempt_id).stream_call;
  world_.AnswerOnCall<RouterProcess>(
      call, node_, "token",
      [call, attempt_id, token](RouterProcess& router) { router.Token(call, attempt_id, token); });
}

void DecodeProcess::EndStream(uint64_t call, uint64_t attempt_id,
                              const decode::TicketBook::Outcome& outcome) {
  if (outcome.ok()) {
    world_.AnswerOnCall<RouterProcess>(
        call, node_, "decode finish", [call, attempt_id, reason = *outcome](RouterProcess& router) {
          router.DecodeFinished(call, attempt_id, reason);
        });
  }
  absl::Status status = outcome.status();
  if (!status.ok() && !LegOf(status).has_value()) {
    status = WithLeg(status, RoleName(topology_.RoleOf(node_)), self_.id);
  }
  world_.AnswerOnCall<RouterProcess>(call, node_, "stream end",
                                     [call, attempt_id, status](RouterProcess& router) {
                                       router.StreamEnd(call, attempt_id, status);
                                     });
}

void DecodeProcess::Perform(const prefill::PromptDone& action) {
  if (!colocated()) return;
  const uint64_t call = sessions_.at(action.attempt_id).stream_call;
  world_.AnswerOnCall<RouterProcess>(call, node_, "prompt done", [call, action](RouterProcess& r) {
    r.PromptTold(call, action.attempt_id, action.outcome.prompt_tokens);
  });
}

void DecodeProcess::Perform(const prefill::DeliverToken& action) {
  if (colocated()) return SendToken(action.attempt_id, action.token);
  if (book_.Deliver(action.attempt_id, action.token)) SendToken(action.attempt_id, action.token);
}

void DecodeProcess::Perform(const prefill::FinishRequest& action) {
  const uint64_t attempt_id = action.attempt_id;
  decode::TicketBook::Outcome outcome = action.reason;
  absl::Status status = action.status;
  if (!status.ok()) {
    if (!LegOf(status).has_value()) {
      status = WithLeg(status, RoleName(topology_.RoleOf(node_)), self_.id);
    }
    outcome = status;
  }
  const Session session = sessions_.at(attempt_id);
  if (colocated()) {
    sessions_.erase(attempt_id);
    return EndStream(session.stream_call, attempt_id, outcome);
  }
  switch (book_.End(attempt_id, outcome)) {
    case decode::TicketBook::EndFor::kLater:
      if (!book_.Holds(attempt_id)) sessions_.erase(attempt_id);
      return;
    case decode::TicketBook::EndFor::kReservation:
      sessions_.erase(attempt_id);
      world_.AnswerOnCall<RouterProcess>(
          session.reserve_call, node_, "reserve reply",
          [call = session.reserve_call, attempt_id, status](RouterProcess& router) {
            router.ReserveReply(call, attempt_id, status);
          });
      return;
    case decode::TicketBook::EndFor::kStream:
      sessions_.erase(attempt_id);
      return EndStream(session.stream_call, attempt_id, outcome);
  }
}

// ---- The hand-off and plans, here and on the other members ----

void DecodeProcess::OnLease(const LeaseEvent& event) {
  LeaseEvent heard = event;
  if (auto* committed = std::get_if<KvCommitted>(&heard)) {
    // Drawn by a kernel that has gone wrong.
    if (committed->first_token.has_value() && world_.Strikes(&NetworkFaults::compute_fail)) {
      committed->first_token->token = kVocabulary;
    }
  }
  HandlePlanner(prefill::KvHeard{0, heard});
}

void DecodeProcess::Perform(const prefill::GrantKv& action) {
  if (action.member > 0) return SendOrder(action.member, action.grant);
  const absl::Status status = grants_.Grant(action.grant);
  if (!status.ok()) world_.Violate(absl::StrCat(self_.id, ": ", status.message()));
}

void DecodeProcess::Perform(const prefill::RevokeKv& action) {
  const absl::Status status = grants_.Revoke(action.slot, action.generation);
  if (!status.ok()) world_.Violate(absl::StrCat(self_.id, ": ", status.message()));
  SendAll(action);
}

void DecodeProcess::Perform(const prefill::IssuePlan& action) {
  SendAll(action.plan);
  HandleStage(prefill::PlanArrived{action.plan});
}

void DecodeProcess::Perform(const prefill::FailChain& action) {
  wiring_.BreakAt(action.stage, action.rank, action.status);
}

// Events of its own, as the loop has them in turn.
void DecodeProcess::OnReport(uint64_t /*epoch*/, const prefill::PlannerEvent& report) {
  world_.After(node_, 1, "own report", [this, report] { HandlePlanner(report); });
}

absl::Status DecodeProcess::CheckInvariants() const {
  BATON_RETURN_IF_ERROR(planner_.CheckInvariants());
  BATON_RETURN_IF_ERROR(wiring_.CheckInvariants());
  return DecodeRank::CheckInvariants();
}

bool DecodeProcess::AtRest(std::string& why_not) const {
  if (!DecodeRank::AtRest(why_not)) return false;
  const prefill::PlannerLoad load = planner_.load();
  if (planner_.AtRest() && book_.empty() && load.owned_pages == 0) return true;
  why_not =
      absl::StrCat("queued ", load.queued, " open ", load.open, " owned pages ", load.owned_pages,
                   " plans in flight ", load.plans_in_flight, ", ", sessions_.size(), " sessions");
  return false;
}

}  // namespace baton::sim

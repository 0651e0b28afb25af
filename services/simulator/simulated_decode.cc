#include "services/simulator/simulated_decode.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/check.h"

namespace baton::simulator {
namespace {

constexpr uint64_t kEpoch = 1;
constexpr size_t kKeptOutcomes = 1024;
constexpr int64_t kStreamLeaseUs = 3'000'000;

prefill::StageOptions StageOptionsOf(const ClusterShape& shape) {
  return {.stages = 1, .page_size = shape.layout.page_size};
}

}  // namespace

SimulatedDecode::SimulatedDecode(const ClusterShape& shape, const InstanceRef& self,
                                 VirtualTime& time, Ways ways)
    : time_(time),
      ways_(std::move(ways)),
      planner_(DecodeLimitsOf(shape, self)),
      stage_(StageOptionsOf(shape)),
      book_(std::max(kStreamLeaseUs, 4 * shape.latency_us), kKeptOutcomes),
      steps_(shape.profile, {0, shape.profile.layers}),
      inbound_(shape.kv_gbps),
      alarm_(time, [this] { Wake(); }) {
  record_.page_count = shape.decode_pages;
  HandleStage(prefill::EpochBegan{kEpoch});
  HandlePlanner(prefill::ChainUp{kEpoch, 1, shape.decode_pages});
}

// ---- From the router ----

void SimulatedDecode::Reserve(const prefill::StartRequested& request) {
  book_.Ask(request.attempt_id);
  HandlePlanner(request);
}

void SimulatedDecode::Open(uint64_t attempt_id, uint64_t generation) {
  const auto owed = book_.Open(attempt_id, generation);
  if (!owed.ok()) return ways_.finished(attempt_id, owed.status());
  std::vector<prefill::DeliverToken> tokens;
  for (const SampledToken& token : owed->tokens) tokens.push_back({attempt_id, token});
  if (!tokens.empty()) ways_.tokens(tokens);
  if (owed->outcome.has_value()) ways_.finished(attempt_id, *owed->outcome);
}

void SimulatedDecode::Abort(uint64_t attempt_id, const absl::Status& reason) {
  HandlePlanner(prefill::AbortRequested{attempt_id, reason});
  book_.ForgetIfOver(attempt_id);
}

void SimulatedDecode::Commit(const Ticket& ticket, const std::optional<SampledToken>& first_token) {
  const auto found = grants_.find(ticket.generation);
  if (found == grants_.end()) return;  // The grant has been revoked.
  Grant& grant = found->second;
  if (first_token.has_value()) grant.first_token = *first_token;
  if (--grant.missing > 0) return;
  const KvCommitted committed{grant.slot, ticket.generation, grant.first_token, 0};
  grants_.erase(found);
  HandlePlanner(prefill::KvHeard{0, committed});
}

void SimulatedDecode::Wake() {
  for (const uint64_t attempt_id : book_.Expire(time_.now_us())) {
    Abort(attempt_id, book_.TooLate());
  }
  HandlePlanner(prefill::Tick{});
}

// ---- The planner ----

void SimulatedDecode::HandlePlanner(const prefill::PlannerEvent& event) {
  std::vector<prefill::PlannerAction> actions;
  planner_.Handle(event, time_.now_us(), actions);
  Measure();
  std::vector<prefill::DeliverToken> tokens;
  for (const prefill::PlannerAction& action : actions) Perform(action, tokens);
  if (!tokens.empty()) ways_.tokens(tokens);
  alarm_.Set(std::min(planner_.NextDeadlineUs(), book_.NextDeadlineUs()));
}

void SimulatedDecode::Measure() {
  const prefill::PlannerLoad load = planner_.load();
  record_.waiting.Set(time_.now_us(), load.queued);
  record_.running.Set(time_.now_us(), load.open - static_cast<int>(grants_.size()));
  record_.pages.Set(time_.now_us(), load.owned_pages);
}

// A stream's tokens are delivered before its end, in order.
void SimulatedDecode::Perform(const prefill::PlannerAction& action,
                              std::vector<prefill::DeliverToken>& tokens) {
  if (const auto* token = std::get_if<prefill::DeliverToken>(&action)) {
    if (book_.Deliver(token->attempt_id, token->token)) tokens.push_back(*token);
  } else if (const auto* finish = std::get_if<prefill::FinishRequest>(&action)) {
    absl::StatusOr<FinishReason> outcome = finish->reason;
    if (!finish->status.ok()) outcome = finish->status;
    const decode::TicketBook::EndFor end = book_.End(finish->attempt_id, outcome);
    if (end == decode::TicketBook::EndFor::kReservation) {
      ways_.replied(finish->attempt_id, finish->status);
    } else if (end == decode::TicketBook::EndFor::kStream) {
      if (!tokens.empty()) ways_.tokens(std::exchange(tokens, {}));
      ways_.finished(finish->attempt_id, outcome);
    }
  } else if (const auto* issue = std::get_if<prefill::IssuePlan>(&action)) {
    HandleStage(prefill::PlanArrived{issue->plan});
  } else if (const auto* ticket = std::get_if<prefill::HandOutTicket>(&action)) {
    book_.GiveTicket(ticket->attempt_id, ticket->ticket.generation, time_.now_us());
    ways_.replied(ticket->attempt_id, ticket->ticket);
  } else if (const auto* grant = std::get_if<prefill::GrantKv>(&action)) {
    grants_[grant->grant.generation] = {grant->grant.slot, grant->grant.writers.size(), {}};
  } else if (const auto* revoke = std::get_if<prefill::RevokeKv>(&action)) {
    grants_.erase(revoke->generation);
    time_.At(time_.now_us(), [this, drained = KvDrained{revoke->slot, revoke->generation}] {
      HandlePlanner(prefill::KvHeard{0, drained});
    });
  } else if (const auto* fail = std::get_if<prefill::FailChain>(&action)) {
    BATON_CHECK(false) << fail->status;
  }
}

// ---- The stage ----

void SimulatedDecode::HandleStage(const prefill::StageEvent& event) {
  std::vector<prefill::StageAction> actions;
  stage_.Handle(event, time_.now_us(), actions);
  for (const prefill::StageAction& action : actions) Perform(action);
}

void SimulatedDecode::Perform(const prefill::StageAction& action) {
  const auto tell = [this](prefill::PlannerEvent event) {
    time_.At(time_.now_us(), [this, event = std::move(event)] { HandlePlanner(event); });
  };
  if (const auto* run = std::get_if<prefill::RunCompute>(&action)) {
    submitted_.push_back(*run);
    if (submitted_.size() == 1) BeginCompute();
  } else if (const auto* done = std::get_if<prefill::ReportPlanDone>(&action)) {
    tell(prefill::StagePlanDone{0, done->epoch, done->done});
  } else if (const auto* closed = std::get_if<prefill::ReportRequestClosed>(&action)) {
    tell(prefill::StageRequestClosed{0, closed->epoch, closed->closed});
  } else if (const auto* end = std::get_if<prefill::EndEpoch>(&action)) {
    BATON_CHECK(false) << end->status;
  }
}

void SimulatedDecode::BeginCompute() {
  const prefill::RunCompute& run = submitted_.front();
  TimedStep step;
  prefill::ComputeFinished done;
  done.epoch = run.epoch;
  done.number = run.number;
  for (const prefill::RunCompute::Item& item : run.items) {
    step.Add(item.item.token_begin, item.item.token_count);
    if (item.item.draws) done.drawn.emplace_back(SampledToken{1, 0, {}});
  }
  done.compute_us = steps_.NextMicros(step);
  ++record_.steps;
  record_.busy_us += done.compute_us;
  const int64_t at_us = time_.now_us() + done.compute_us;
  time_.At(at_us, [this, done = std::move(done)] {
    submitted_.pop_front();
    if (!submitted_.empty()) BeginCompute();
    HandleStage(done);
  });
}

}  // namespace baton::simulator

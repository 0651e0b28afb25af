#include "services/simulator/simulated_decode.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace baton::simulator {
namespace {

constexpr size_t kKeptOutcomes = 1024;
constexpr int64_t kStreamLeaseUs = 3'000'000;

}  // namespace

SimulatedDecode::SimulatedDecode(const ClusterShape& shape, int decode, VirtualTime& time,
                                 Ways ways)
    : time_(time),
      ways_(std::move(ways)),
      book_(std::max(kStreamLeaseUs, 4 * shape.latency_us), kKeptOutcomes),
      book_alarm_(time, [this] { WakeBook(); }),
      members_(shape.decode_stages.size(), {Pipe(shape.kv_gbps), {}}),
      chain_(shape, DecodeShapeOf(shape, decode), time, ChainWays()) {}

SimulatedChain::Ways SimulatedDecode::ChainWays() {
  SimulatedChain::Ways ways;
  ways.finished = [this](const prefill::FinishRequest& finish) { HearFinish(finish); };
  ways.tokens = [this](const auto& tokens) { HearTokens(tokens); };
  ways.failed = ways_.failed;
  ways.granting = [this](const prefill::PlannerAction& action) { PerformGranting(action); };
  return ways;
}

// ---- From the router ----

void SimulatedDecode::Reserve(const prefill::StartRequested& request) {
  book_.Ask(request.attempt_id);
  chain_.Handle(request);
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
  chain_.Handle(prefill::AbortRequested{attempt_id, reason});
  book_.ForgetIfOver(attempt_id);
}

void SimulatedDecode::WakeBook() {
  for (const uint64_t attempt_id : book_.Expire(time_.now_us())) {
    Abort(attempt_id, book_.TooLate());
  }
  book_alarm_.Set(book_.NextDeadlineUs());
}

// ---- The hand-off ----

void SimulatedDecode::Commit(const Ticket& ticket, int stage,
                             const std::optional<SampledToken>& first_token) {
  std::map<uint64_t, Grant>& grants = members_[static_cast<size_t>(stage)].grants;
  const auto found = grants.find(ticket.generation);
  if (found == grants.end()) return;  // The grant has been revoked.
  Grant& grant = found->second;
  if (first_token.has_value()) grant.first_token = first_token;
  if (--grant.missing > 0) return;
  const KvCommitted committed{grant.slot, ticket.generation, grant.first_token, 0};
  grants.erase(found);
  AtStage(stage, [this, stage, committed] { chain_.Handle(prefill::KvHeard{stage, committed}); });
}

void SimulatedDecode::AtStage(int stage, std::function<void()> run) {
  if (stage == 0) return run();
  time_.Deliver(std::move(run));
}

void SimulatedDecode::Tell(int stage, prefill::PlannerEvent event) {
  const int64_t at_us = time_.now_us() + (stage == 0 ? 0 : time_.latency_us);
  time_.At(at_us, [this, event = std::move(event)] { chain_.Handle(event); });
}

void SimulatedDecode::PerformGranting(const prefill::PlannerAction& action) {
  if (const auto* ticket = std::get_if<prefill::HandOutTicket>(&action)) {
    book_.GiveTicket(ticket->attempt_id, ticket->ticket.generation, time_.now_us());
    book_alarm_.Set(book_.NextDeadlineUs());
    ways_.replied(ticket->attempt_id, ticket->ticket);
  } else if (const auto* grant = std::get_if<prefill::GrantKv>(&action)) {
    const int stage = grant->member;
    AtStage(stage, [this, stage, granted = grant->grant] {
      members_[static_cast<size_t>(stage)].grants[granted.generation] = {
          granted.slot, granted.writers.size(), {}};
      if (stage == 0) return;
      Tell(stage, prefill::MemberGranted{stage, granted.slot, granted.generation});
    });
  } else if (const auto* revoke = std::get_if<prefill::RevokeKv>(&action)) {
    for (int stage = 0; stage < static_cast<int>(members_.size()); ++stage) {
      AtStage(stage, [this, stage, drained = KvDrained{revoke->slot, revoke->generation}] {
        members_[static_cast<size_t>(stage)].grants.erase(drained.generation);
        Tell(stage, prefill::KvHeard{stage, drained});
      });
    }
  }
}

// ---- To the router ----

void SimulatedDecode::HearTokens(std::vector<prefill::DeliverToken> tokens) {
  std::erase_if(tokens, [this](const prefill::DeliverToken& token) {
    return !book_.Deliver(token.attempt_id, token.token);
  });
  if (!tokens.empty()) ways_.tokens(tokens);
}

void SimulatedDecode::HearFinish(const prefill::FinishRequest& finish) {
  absl::StatusOr<FinishReason> outcome = finish.reason;
  if (!finish.status.ok()) outcome = finish.status;
  const decode::TicketBook::EndFor end = book_.End(finish.attempt_id, outcome);
  if (end == decode::TicketBook::EndFor::kReservation) {
    ways_.replied(finish.attempt_id, finish.status);
  } else if (end == decode::TicketBook::EndFor::kStream) {
    ways_.finished(finish.attempt_id, outcome);
  }
}

}  // namespace baton::simulator

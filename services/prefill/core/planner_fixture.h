// The fixture of the planner's tests.
#ifndef SERVICES_PREFILL_CORE_PLANNER_FIXTURE_H_
#define SERVICES_PREFILL_CORE_PLANNER_FIXTURE_H_

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "services/prefill/core/chain_planner.h"

namespace baton::prefill {

// Drives one planner whose chain has epoch kEpoch: events in; plans and ends are kept, the actions
// of the last event too. Checks the invariants after every event.
class PlannerTest : public testing::Test {
 protected:
  static constexpr uint64_t kEpoch = 7;
  static constexpr int kPageSize = 16;

  static Ticket TicketFor(int tokens) {
    Ticket ticket;
    ticket.decode = {"decode-0", 1};
    ticket.generation = 1;
    ticket.prompt_tokens = tokens;
    ticket.prompt_pages = (tokens + kPageSize - 1) / kPageSize;
    return ticket;
  }
  static PlannerLimits Limits() {
    return {.page_size = kPageSize,
            .chunk_tokens = 64,
            .plan_window = 3,
            .stage0_lead = 2,
            .max_open_requests = 4,
            .max_queued_requests = 8,
            .max_context_tokens = 1000};
  }

  explicit PlannerTest(const PlannerLimits& limits = Limits()) { Make(limits); }
  void Make(const PlannerLimits& limits) {
    planner_.emplace(limits);
    plans_.clear();
    finished_.clear();
  }
  void Up(int stages = 2, int pages = 64) { Send(ChainUp{kEpoch, stages, pages}); }

  void Send(const PlannerEvent& event) {
    actions_.clear();
    planner_->Handle(event, now_us_, actions_);
    ASSERT_TRUE(planner_->CheckInvariants().ok()) << planner_->CheckInvariants();
    for (const PlannerAction& action : actions_) {
      if (const auto* issue = std::get_if<IssuePlan>(&action)) plans_.push_back(issue->plan);
      if (const auto* finish = std::get_if<FinishRequest>(&action)) finished_.push_back(*finish);
    }
  }
  void Start(uint64_t attempt, int tokens, int64_t deadline_us = kNeverUs) {
    Send(StartRequested{attempt, tokens, TicketFor(tokens), deadline_us});
  }
  void Done(int stage, uint64_t number) {
    Send(StagePlanDone{stage, kEpoch, {number, int64_t{10} * (stage + 1), 1}});
  }
  void Closed(int stage, uint64_t attempt, absl::Status status = absl::OkStatus()) {
    Send(StageRequestClosed{
        stage, kEpoch, {attempt, std::move(status), 100, int64_t{5} * (stage + 1), 3}});
  }

  std::optional<ChainPlanner> planner_;
  int64_t now_us_ = 1000;
  std::vector<PlannerAction> actions_;
  std::vector<Plan> plans_;
  std::vector<FinishRequest> finished_;
};

// For requests without a ticket, which the chain decodes.
class DecodingTest : public PlannerTest {
 protected:
  static constexpr int32_t kEos = 2;

  static PlannerLimits Decoding() {
    PlannerLimits limits = Limits();
    limits.decodes = true;
    limits.vocab_size = 100;
    return limits;
  }
  explicit DecodingTest(const PlannerLimits& limits = Decoding()) : PlannerTest(limits) {}

  void Generate(uint64_t attempt, int tokens, int max_tokens, bool prompt_logprobs = false) {
    StartRequested start{attempt, tokens};
    start.stop = {.max_tokens = max_tokens, .eos_ids = {kEos}};
    start.prompt_logprobs = prompt_logprobs;
    Send(start);
  }
  // The last plan's items that draw give `token`.
  void Drawn(int stage, const Plan& plan, int32_t token) {
    PlanDone done{plan.number, 10, 1, {}, {}};
    for (const PlanItem& item : plan.items) {
      if (item.draws) done.drawn.push_back({item.attempt_id, SampledToken{token, -1, {}}});
    }
    Send(StagePlanDone{stage, kEpoch, done});
  }
  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const PlannerAction& action : actions_) {
      if (const auto* match = std::get_if<T>(&action)) found.push_back(*match);
    }
    return found;
  }
  static std::vector<uint64_t> Rows(const Plan& plan) {
    std::vector<uint64_t> rows;
    for (const PlanItem& item : plan.items) {
      if (item.token_count == 1 && item.draws) rows.push_back(item.attempt_id);
    }
    return rows;
  }
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_PLANNER_FIXTURE_H_

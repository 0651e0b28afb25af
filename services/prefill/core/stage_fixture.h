// The fixture of the stage's tests: events in, the actions of the last one by type, invariants
// checked after every event.
#ifndef SERVICES_PREFILL_CORE_STAGE_FIXTURE_H_
#define SERVICES_PREFILL_CORE_STAGE_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "services/prefill/core/stage.h"

namespace baton::prefill {

inline constexpr uint64_t kEpoch = 5;

inline Ticket TicketFor(int tokens) {
  Ticket ticket;
  ticket.decode = {"decode-0", 1};
  ticket.generation = 1;
  ticket.prompt_tokens = tokens;
  ticket.prompt_pages = (tokens + 15) / 16;
  return ticket;
}

// Attempt 1: a prompt of 96 tokens in chunks of 32, pages 10 to 15.
inline Plan ChunkPlan(uint64_t number) {
  const int begin = static_cast<int>(number - 1) * 32;
  Plan plan{kEpoch, number, {}, {{1, begin, 32, begin == 64}}, {}};
  if (number == 1) plan.opens.push_back({1, TicketFor(96), {10, 11, 12, 13, 14, 15}});
  return plan;
}

class StageTest : public testing::Test {
 protected:
  // `credits` as many as plans in flight need, and two at least.
  void Make(int stage, int stages, int plans_in_flight = 1) {
    stage_.emplace(StageOptions{.stage = stage,
                                .stages = stages,
                                .page_size = 16,
                                .activation_credits = std::max(2, plans_in_flight),
                                .plan_limit = 4,
                                .plans_in_flight = plans_in_flight});
    Send(EpochBegan{kEpoch});
  }

  void MakeRank(TensorRank rank, int kv_heads) {
    stage_.emplace(StageOptions{.stage = 1,
                                .stages = 2,
                                .tensor_rank = rank,
                                .kv_heads = kv_heads,
                                .page_size = 16,
                                .activation_credits = 4});
    Send(EpochBegan{kEpoch});
  }

  void Send(const StageEvent& event) {
    actions_.clear();
    stage_->Handle(event, now_us_, actions_);
    ASSERT_TRUE(stage_->CheckInvariants().ok()) << stage_->CheckInvariants();
  }
  void Computed(uint64_t number, std::vector<absl::StatusOr<SampledToken>> tokens = {}) {
    Send(ComputeFinished{kEpoch, number, absl::OkStatus(), 100, std::move(tokens), {}});
  }
  void Sent(uint64_t send_id, absl::Status status = absl::OkStatus()) {
    Send(KvSent{kEpoch, send_id, std::move(status), 7, 1000});
  }

  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const StageAction& action : actions_) {
      if (const auto* match = std::get_if<T>(&action)) found.push_back(*match);
    }
    return found;
  }
  template <typename T>
  bool Has() const {
    return !All<T>().empty();
  }

  std::optional<Stage> stage_;
  int64_t now_us_ = 1000;
  std::vector<StageAction> actions_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_STAGE_FIXTURE_H_

// What a follower of a decode service, rank 1 or a later one, makes of rank 0's orders: grants for
// its own lease table, steps for its executor, in the order in which rank 0 gave them. It decides
// nothing about requests. Event in, actions out; deterministic.
//
// Orders come from another process, so each is checked against what came before it; one that makes
// no sense ends the epoch, since the ranks don't agree any more on what they hold. An epoch ends
// with everything that it has brought: a follower begins the next one when it holds nothing.
//
// Rejected: to report the end of each step to rank 0, which would cost a message per token. A
// step's sums need all ranks, so rank 0 knows that they have computed it. A follower may still be
// finishing the step when rank 0 gives one of its pages to another request; that page is used here
// only afterwards, since the confirmation of a grant waits for the steps before it, and a step that
// brings a page comes after them.
#ifndef SERVICES_DECODE_CORE_FOLLOWER_H_
#define SERVICES_DECODE_CORE_FOLLOWER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/lease_table.h"
#include "common/types/instance.h"
#include "common/types/ticket.h"
#include "services/decode/core/decode_core.h"

namespace baton::decode {

// Rank 0 sends a step when the last one has come back from its executor; a follower may be a
// moment behind.
inline constexpr size_t kMaxFollowerSteps = 4;

struct FollowerLimits {
  TensorRank rank;
  int kv_heads = 0;  // The model's.
  int layers = 0;    // The model's.
  int page_size = 0;
  int page_count = 0;
  int slots = 0;
  int max_context_tokens = 0;
  int vocab_size = 0;
};

// ---- Orders ----
struct GrantOrder {
  uint32_t slot = 0;
  uint64_t generation = 0;
  int prompt_pages = 0;
  std::vector<int> pages;  // The prompt's and those of what follows it, as far as reserved.
  std::vector<KvWriter> writers;
  int first_page = 0;  // The pages before it have KV that other grants may share.
};
struct RevokeOrder {
  uint32_t slot = 0;
  uint64_t generation = 0;
};
struct StepOrder {
  struct Row {
    uint32_t slot = 0;
    uint64_t generation = 0;
    int32_t token = 0;
    int position = 0;
    int new_page = -1;  // The grant has this page, too, from now on; -1: none.
  };
  uint64_t step = 0;
  std::vector<Row> rows;
};
using Order = std::variant<GrantOrder, RevokeOrder, StepOrder>;

// ---- Events ----
struct EpochBegan {};  // After may_begin().
struct OrderHeard {
  Order order;
};
struct FollowerStepEnded {
  uint64_t step = 0;
  absl::Status status;
};
struct LeaseHeard {
  LeaseEvent event;
};
struct EpochOver {};
using FollowerEvent =
    std::variant<EpochBegan, OrderHeard, FollowerStepEnded, LeaseHeard, EpochOver>;

// ---- Actions: GrantKv and RevokeKv of this rank, RunStep, and reports to rank 0 ----
struct TellGranted {  // Once the grant is in force.
  uint32_t slot = 0;
  uint64_t generation = 0;
};
struct TellLease {
  LeaseEvent event;
};
struct FailEpoch {
  absl::Status status;
};
using FollowerAction = std::variant<GrantKv, RevokeKv, RunStep, TellGranted, TellLease, FailEpoch>;

class Follower {
 public:
  explicit Follower(const FollowerLimits& limits)
      : limits_(limits), taken_(static_cast<size_t>(limits.page_count), false) {}

  void Handle(const FollowerEvent& event, std::vector<FollowerAction>& actions);

  // Nothing is left of the last epoch.
  bool may_begin() const { return !begun_ && AtRest(); }
  bool AtRest() const { return granted_.empty() && revoked_.empty() && steps_.empty(); }
  int held_pages() const;
  uint64_t newest_generation() const { return last_generation_; }

 private:
  struct Pages {
    std::vector<int> all;
    int shared = 0;  // The first so many; the others are this grant's alone.
    std::span<const int> own() const { return std::span(all).subspan(static_cast<size_t>(shared)); }
  };
  using Grants = std::map<std::pair<uint32_t, uint64_t>, Pages>;  // By slot and generation.
  struct Step {
    uint64_t step = 0;
    std::vector<TellGranted> granted_after;
  };

  void On(const EpochBegan& event);
  void On(const OrderHeard& event);
  void On(const FollowerStepEnded& event);
  void On(const LeaseHeard& event);
  void On(const EpochOver& event);

  absl::Status Take(const GrantOrder& order);
  absl::Status Take(const RevokeOrder& order);
  absl::Status Take(const StepOrder& order);
  absl::Status CheckGrant(const GrantOrder& order) const;
  absl::Status CheckPages(const GrantOrder& order) const;
  bool IsFree(int page) const {
    return page >= 0 && page < limits_.page_count && !taken_[static_cast<size_t>(page)];
  }
  void Mark(std::span<const int> pages, bool taken);
  // The row's pages, the new one included, which the grant has when the whole step is sound.
  absl::StatusOr<RunStep::Sequence> CheckRow(const StepOrder::Row& row) const;
  void Emit(FollowerAction action) { actions_->push_back(std::move(action)); }

  const FollowerLimits limits_;
  bool begun_ = false;
  uint64_t last_generation_ = 0;  // Over this epoch and those before.
  uint64_t last_step_ = 0;
  Grants granted_;
  Grants revoked_;           // Until the table has drained them; their pages are taken.
  std::vector<bool> taken_;  // By page: it is some grant's own.
  std::deque<Step> steps_;   // With the executor, in order.
  std::vector<FollowerAction>* actions_ = nullptr;  // For the Handle call under way.
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_CORE_FOLLOWER_H_

// Which rank is at fault when a collective does not end in time.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/collective/collective_core.h"

namespace baton::collective {
namespace {

constexpr uint64_t Bit(int rank) { return uint64_t{1} << static_cast<unsigned>(rank); }

}  // namespace

void CollectiveCore::RestartWaiting(int64_t now_us) {
  const int64_t timeout_us = options_.communicator.operation_timeout_ms * 1000;
  deadline_us_ = now_us + timeout_us;
  ask_at_us_ = now_us + timeout_us / 8 * 7;
  if (!std::exchange(asked_, false)) return;
  for (Peer& peer : peers_) peer.waits_for.reset();
}

void CollectiveCore::Tick(int64_t now_us) {
  if (!run_) return;
  if (now_us >= deadline_us_) return Fail(Overdue());
  if (now_us < ask_at_us_ || std::exchange(asked_, true)) return;
  for (Peer& peer : peers_) peer.ask_due = true;
}

uint64_t CollectiveCore::Missing() const {
  uint64_t missing = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    const bool owes_data = run_->Owes(rank) && peer.offered.empty();
    const bool owes_credit = run_->NextOut(rank).has_value() && !HasCredit(peer);
    if (owes_data || owes_credit) missing |= Bit(rank);
  }
  return missing;
}

uint64_t CollectiveCore::Suspects() const {
  const uint64_t missing = Missing();
  uint64_t innocent = Bit(group_.rank);
  uint64_t behind = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const uint64_t waits_for = peers_[rank].waits_for.value_or(0) & ~Bit(group_.rank);
    if (waits_for != 0) innocent |= Bit(rank);
    behind |= waits_for;
  }
  if ((missing & ~innocent) != 0) return missing & ~innocent;
  if ((behind & ~innocent) != 0) return behind & ~innocent;
  return missing;
}

absl::Status CollectiveCore::Overdue() const {
  std::vector<std::string> names;
  int first = group_.rank;
  bool begun = false;
  for (int rank = group_.size() - 1; rank >= 0; --rank) {
    if ((Suspects() & Bit(rank)) == 0) continue;
    first = rank;
    begun |= run_->InOffset(rank) > 0 || step_ > 0;
    names.insert(names.begin(), group_.Describe(rank));
  }
  // No other rank is missing, so this process was late itself.
  if (names.empty()) names.push_back(group_.Describe(group_.rank));
  return WithRank(
      absl::DeadlineExceededError(absl::StrCat(
          absl::StrJoin(names, " and "), begun ? " did not finish " : " did not take part in ",
          DescribeData(current_), " within ", options_.communicator.operation_timeout_ms, " ms")),
      first);
}

absl::Status CollectiveCore::Unformed(int64_t timeout_ms) const {
  std::vector<std::string> names;
  int first = group_.rank;
  for (int rank = group_.size() - 1; rank >= 0; --rank) {
    if (rank == group_.rank || peers_[rank].hello_seen) continue;
    first = rank;
    names.insert(names.begin(), group_.Describe(rank));
  }
  return WithRank(absl::DeadlineExceededError(absl::StrCat(
                      absl::StrJoin(names, " and "), " did not join within ", timeout_ms, " ms")),
                  first);
}

}  // namespace baton::collective

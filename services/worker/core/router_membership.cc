#include "services/worker/core/router_membership.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/coverage.h"

namespace baton::worker {
namespace {

// An address may come to lead to another router.
constexpr int64_t kAliasCheckUs = 30'000'000;

}  // namespace

RouterMembership::RouterMembership(std::string address, const MembershipTimes& times,
                                   int64_t now_us)
    : address_(std::move(address)),
      times_(times),
      asking_since_us_(now_us),
      interval_us_(times.heartbeat_us),
      next_us_(now_us),
      backoff_us_(times_.first_backoff_us),
      heard_us_(now_us) {}

std::optional<RouterMembership::Due> RouterMembership::due(int64_t now_us) const {
  if (now_us < next_us()) return std::nullopt;
  if (answer_by_us_ != kNeverUs) return Due::kGiveUp;
  return lease_ == 0 ? Due::kAsk : Due::kHeartbeat;
}

int64_t RouterMembership::next_us() const {
  if (left_) return kNeverUs;
  return answer_by_us_ != kNeverUs ? answer_by_us_ : next_us_;
}

void RouterMembership::Ask(uint64_t lease, int64_t now_us) {
  lease_ = lease;
  asking_ = true;
  answer_by_us_ = now_us + times_.AnswerTimeoutUs();
}

void RouterMembership::Beat(int64_t now_us, bool leaving) {
  answer_by_us_ = now_us + times_.AnswerTimeoutUs();
  began_us_ = now_us;
  last_under_way_ = leaving;
  news_gap_us_ = kNeverUs;  // What comes from here on may not be in what is sent now.
}

void RouterMembership::Answered(int64_t now_us) {
  answer_by_us_ = kNeverUs;
  failures_ = 0;
  backoff_us_ = times_.first_backoff_us;
  heard_us_ = now_us;
}

void RouterMembership::Accepted() {
  refusal_ = absl::OkStatus();
  refused_for_good_ = false;
  refusals_ = 0;
}

void RouterMembership::Close() {
  lease_ = 0;
  asking_ = false;
  answer_by_us_ = kNeverUs;
  last_under_way_ = false;
}

void RouterMembership::Registered(uint64_t router_incarnation, int64_t interval_us,
                                  int64_t now_us) {
  Answered(now_us);
  asking_ = false;
  state_ = State::kMember;
  incarnation_ = router_incarnation;
  Accepted();
  told_of_drain_ = false;
  interval_us_ = interval_us > 0 ? std::min(interval_us, times_.heartbeat_us) : times_.heartbeat_us;
  next_us_ = now_us;  // A joined worker is told of its members.
}

void RouterMembership::IsAlias(int64_t now_us) {
  Answered(now_us);
  Close();
  Covered<"worker: a router has another address">();
  state_ = State::kAlias;
  Accepted();
  listed_.clear();
  changed_ = true;
  next_us_ = now_us + kAliasCheckUs;
}

// Who is refused for now asks as often as a member sends heartbeats: a place that comes free is
// taken within one interval, and the router sees who waits.
void RouterMembership::Refused(const absl::Status& status, bool for_good, int64_t now_us) {
  Answered(now_us);
  Close();
  state_ = State::kJoining;
  Covered<"worker: a router refuses">();
  if (refusal_.ok()) {
    refused_since_us_ = now_us;
    refused_backoff_us_ = std::min(times_.first_backoff_us, times_.heartbeat_us);
  }
  refusals_ = refusal_ == status ? refusals_ + 1 : 1;
  refusal_ = status;
  refused_for_good_ = for_good;
  next_us_ = now_us + (for_good ? times_.longest_backoff_us : refused_backoff_us_);
  refused_backoff_us_ =
      std::min({times_.longest_backoff_us, times_.heartbeat_us, 2 * refused_backoff_us_});
}

void RouterMembership::HeartbeatTaken(std::optional<std::vector<PeerWorker>> members,
                                      int64_t now_us) {
  Answered(now_us);
  if (last_under_way_) return Left();
  next_us_ = now_us + interval_us_;
  if (news_gap_us_ != kNeverUs) News(now_us, news_gap_us_);
  if (!members.has_value()) return;
  listed_ = *std::move(members);
  changed_ = true;
}

void RouterMembership::DrainHeard(bool told, int needed_requests) {
  told_of_drain_ = told;
  needed_requests_ = std::max(0, needed_requests);
}

void RouterMembership::Left() {
  Close();
  left_ = true;
}

void RouterMembership::Unknown(int64_t now_us) {
  Answered(now_us);
  Close();
  state_ = State::kJoining;
  Covered<"worker: a router does not know it any more">();
  asking_since_us_ = now_us;
  next_us_ = now_us;
}

void RouterMembership::Failed(int64_t now_us) {
  Close();
  Covered<"worker: a router does not answer">();
  ++failures_;
  next_us_ = now_us + backoff_us_;
  backoff_us_ = std::min(times_.longest_backoff_us, 2 * backoff_us_);
  // What an address leads to that has stopped answering is to be found out anew.
  if (state_ == State::kAlias) state_ = State::kJoining;
}

void RouterMembership::News(int64_t now_us, int64_t gap_us) {
  if (!answers()) return;
  if (answer_by_us_ != kNeverUs) {
    news_gap_us_ = std::min(news_gap_us_, gap_us);
  } else {
    next_us_ = std::min(next_us_, std::max(now_us, began_us_ + gap_us));
  }
}

void RouterMembership::AskNow(int64_t now_us) {
  if (lease_ == 0) next_us_ = now_us;
}

}  // namespace baton::worker

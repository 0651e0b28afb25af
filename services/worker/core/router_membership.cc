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

std::optional<RouterMembership::Rpc> RouterMembership::BeginRpc(int64_t now_us, bool leaving) {
  if (rpc_under_way_ || left_ || now_us < next_us_) return std::nullopt;
  rpc_under_way_ = true;
  news_gap_us_ = kNeverUs;  // What comes from here on may not be in what is sent now.
  if (state_ != State::kMember) return Rpc::kRegister;
  began_us_ = now_us;
  last_under_way_ = leaving;
  return Rpc::kHeartbeat;
}

int64_t RouterMembership::next_rpc_us() const {
  return rpc_under_way_ || left_ ? kNeverUs : next_us_;
}

void RouterMembership::Answered(int64_t now_us) {
  rpc_under_way_ = false;
  failures_ = 0;
  backoff_us_ = times_.first_backoff_us;
  heard_us_ = now_us;
}

void RouterMembership::Accepted() {
  refusal_ = absl::OkStatus();
  refused_for_good_ = false;
  refusals_ = 0;
}

void RouterMembership::Registered(uint64_t router_incarnation, int64_t interval_us,
                                  int64_t now_us) {
  Answered(now_us);
  state_ = State::kMember;
  incarnation_ = router_incarnation;
  Accepted();
  view_version_ = 0;  // All members are asked for.
  told_of_drain_ = false;
  interval_us_ = interval_us > 0 ? std::min(interval_us, times_.heartbeat_us) : times_.heartbeat_us;
  watch_from_us_ = 0;  // One that stands is older: the router refuses it.
  next_us_ = now_us;   // A joined worker asks for its members.
}

void RouterMembership::IsAlias(uint64_t router_incarnation, int64_t now_us) {
  Answered(now_us);
  Covered<"worker: a router has another address">();
  state_ = State::kAlias;
  incarnation_ = router_incarnation;
  Accepted();
  DropMembers();
  next_us_ = now_us + kAliasCheckUs;
}

// Who is refused for now asks as often as a member sends heartbeats: a place that comes free is
// taken within one interval, and the router sees who waits.
void RouterMembership::Refused(const absl::Status& status, bool for_good, int64_t now_us) {
  Answered(now_us);
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

void RouterMembership::HeartbeatTaken(uint64_t view_version, std::vector<PeerWorker> members,
                                      int64_t now_us) {
  Answered(now_us);
  if (last_under_way_) left_ = true;
  next_us_ = now_us + interval_us_;
  if (news_gap_us_ != kNeverUs) News(now_us, news_gap_us_);
  if (view_version == view_version_) return;
  view_version_ = view_version;
  listed_ = std::move(members);
  changed_ = true;
}

void RouterMembership::DrainHeard(bool told, int needed_requests) {
  told_of_drain_ = told;
  needed_requests_ = std::max(0, needed_requests);
}

void RouterMembership::Unknown(int64_t now_us) {
  Answered(now_us);
  state_ = State::kJoining;
  Covered<"worker: a router does not know it any more">();
  asking_since_us_ = now_us;
  next_us_ = now_us;
}

void RouterMembership::Failed(int64_t now_us) {
  rpc_under_way_ = false;
  Covered<"worker: a router does not answer">();
  ++failures_;
  next_us_ = now_us + backoff_us_;
  backoff_us_ = std::min(times_.longest_backoff_us, 2 * backoff_us_);
  // What an address leads to that has stopped answering is to be found out anew.
  if (state_ == State::kAlias) state_ = State::kJoining;
}

void RouterMembership::News(int64_t now_us, int64_t gap_us) {
  if (!answers()) return;
  if (rpc_under_way_) {
    news_gap_us_ = std::min(news_gap_us_, gap_us);
  } else {
    next_us_ = std::min(next_us_, std::max(now_us, began_us_ + gap_us));
  }
}

void RouterMembership::AskNow(int64_t now_us) {
  if (!rpc_under_way_) next_us_ = now_us;
}

bool RouterMembership::BeginWatch(int64_t now_us) {
  if (!answers() || watching_ || left_ || now_us < watch_from_us_) return false;
  watching_ = true;
  watch_from_us_ = now_us + interval_us_;
  return true;
}

void RouterMembership::WatchEnded(int64_t now_us) {
  watching_ = false;
  News(now_us);  // The router may have gone, or have taken this worker for dead.
}

void RouterMembership::GiveUpFor(int64_t now_us) {
  DropMembers();
  state_ = State::kJoining;
  asking_since_us_ = now_us;
}

void RouterMembership::DropMembers() {
  listed_.clear();
  view_version_ = 0;
  changed_ = true;
}

}  // namespace baton::worker

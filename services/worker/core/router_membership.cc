#include "services/worker/core/router_membership.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/coverage.h"

namespace baton::worker {
namespace {

// Heartbeats for news keep so much distance, however fast the cluster changes: joins that come
// together are answered with one view.
constexpr int64_t kNewsGapUs = 10'000;
// An address may come to lead to another router.
constexpr int64_t kAliasCheckUs = 30'000'000;

// Those that are listed, in this incarnation or another, need not be kept.
void EraseReplaced(RouterMembership::Listed& kept, const RouterMembership::Listed& listed) {
  std::erase_if(kept, [&listed](const auto& known) {
    const auto same_id = listed.lower_bound({known.first.id, 0});
    return same_id != listed.end() && same_id->first.id == known.first.id;
  });
}

void ForgetVersions(RouterMembership::Listed& listed) {
  for (auto& [instance, worker] : listed) worker.joined_version = 0;
}

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
  news_ = false;  // What comes from here on may not be in what is sent now.
  if (state_ != State::kMember) return Rpc::kRegister;
  began_us_ = now_us;
  told_version_ = applied_version_;
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
  // The versions of another life of the router mean nothing now.
  if (incarnation_ != router_incarnation) {
    ForgetVersions(listed_);
    ForgetVersions(kept_);
  }
  incarnation_ = router_incarnation;
  Accepted();
  joined_us_ = now_us;
  taken_us_ = now_us;
  forgotten_ = false;
  if (!listed_.empty()) keep_until_us_ = now_us + times_.grace_us;
  view_version_ = 0;  // The whole view is asked for.
  applied_version_ = 0;
  told_of_drain_ = false;
  interval_us_ = interval_us > 0 ? std::min(interval_us, times_.heartbeat_us) : times_.heartbeat_us;
  watch_from_us_ = 0;  // One that stands is older: the router refuses it.
  next_us_ = now_us;   // A joined worker asks for its view.
}

void RouterMembership::IsAlias(uint64_t router_incarnation, int64_t now_us) {
  Answered(now_us);
  Covered<"worker: a router has another address">();
  state_ = State::kAlias;
  incarnation_ = router_incarnation;
  Accepted();
  DropView();
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

void RouterMembership::HeartbeatTaken(uint64_t view_version, std::vector<PeerWorker> workers,
                                      uint64_t own_joined_version, int64_t now_us) {
  Answered(now_us);
  taken_us_ = began_us_;
  if (last_under_way_) left_ = true;
  next_us_ = now_us + interval_us_;
  if (news_) next_us_ = std::max(now_us, began_us_ + kNewsGapUs);
  if (view_version == view_version_) {
    viewed_us_ = began_us_;
    return;
  }
  if (view_version == told_version_) {
    // It took the view that the heartbeat named to be here still, and sent none.
    Covered<"worker: a view was given up under a heartbeat">();
    next_us_ = now_us;
    return;
  }
  view_version_ = view_version;
  Listed fresh;
  for (PeerWorker& worker : workers) fresh.emplace(worker.instance, std::move(worker));
  NoteRejoined(fresh, own_joined_version, now_us);
  viewed_us_ = began_us_;
  // A router that has just started lists few at first, and to disconnect and connect again would
  // break chains and hand-offs that run well.
  kept_.merge(listed_);
  EraseReplaced(kept_, fresh);
  listed_ = std::move(fresh);
  view_changed_ = true;
  ExpireKept(now_us);
}

// A peer that joined before this worker was connected to since then.
void RouterMembership::NoteRejoined(const Listed& fresh, uint64_t own_joined_version,
                                    int64_t now_us) {
  std::map<InstanceRef, int64_t> since_us;
  for (const auto& [instance, worker] : fresh) {
    const auto listed = listed_.find(instance);
    const auto kept = kept_.find(instance);
    const uint64_t before = listed != listed_.end() ? listed->second.joined_version
                            : kept != kept_.end()   ? kept->second.joined_version
                                                    : 0;
    const bool again = before != 0 && worker.joined_version > before;
    since_us[instance] = listed == listed_.end() || again ? now_us : listed_since_us_.at(instance);
    if (again && worker.joined_version > own_joined_version) {
      Covered<"worker: a peer has joined again between two views">();
      rejoined_.push_back({instance, viewed_us_});
    }
  }
  listed_since_us_ = std::move(since_us);
}

int64_t RouterMembership::ListedSinceUs(const InstanceRef& peer) const {
  const auto found = listed_since_us_.find(peer);
  return found == listed_since_us_.end() ? kNeverUs : found->second;
}

bool RouterMembership::ExpireKept(int64_t now_us) {
  if (kept_.empty() || now_us < keep_until_us_) return false;
  Covered<"worker: kept peers are dropped">();
  kept_.clear();
  view_changed_ = true;
  return true;
}

void RouterMembership::DrainHeard(bool told, int needed_requests) {
  told_of_drain_ = told;
  needed_requests_ = std::max(0, needed_requests);
}

void RouterMembership::Unknown(int64_t now_us) {
  Answered(now_us);
  state_ = State::kJoining;
  forgotten_ = true;
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

void RouterMembership::News(int64_t now_us) {
  if (!answers()) return;
  if (rpc_under_way_) {
    news_ = true;
  } else {
    next_us_ = std::min(next_us_, std::max(now_us, began_us_ + kNewsGapUs));
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

void RouterMembership::Apply(int64_t now_us) {
  applied_version_ = view_version_;
  if (rpc_under_way_) {
    news_ = true;
  } else if (answers()) {
    next_us_ = now_us;  // It makes pairs ready.
  }
}

void RouterMembership::TakeOver(RouterMembership& other, int64_t now_us) {
  listed_ = std::move(other.listed_);
  listed_since_us_ = std::move(other.listed_since_us_);
  kept_ = std::move(other.kept_);
  keep_until_us_ = other.keep_until_us_;
  view_version_ = other.view_version_;
  viewed_us_ = other.viewed_us_;
  applied_version_ = other.applied_version_;
  joined_us_ = other.joined_us_;
  view_changed_ = true;
  other.DropView();
  other.state_ = State::kJoining;
  other.asking_since_us_ = now_us;
}

void RouterMembership::Adopt(const RouterMembership& other, int64_t now_us) {
  Listed more = other.listed_;
  more.insert(other.kept_.begin(), other.kept_.end());
  ForgetVersions(more);  // They may be of another router.
  kept_.merge(more);
  EraseReplaced(kept_, listed_);
  keep_until_us_ = std::max(keep_until_us_, now_us + times_.grace_us);
  view_changed_ = true;
}

void RouterMembership::DropView() {
  listed_.clear();
  listed_since_us_.clear();
  kept_.clear();
  view_version_ = 0;
  applied_version_ = 0;
  view_changed_ = true;
}

}  // namespace baton::worker

// A worker's membership at one router: when the next RPC is due, and which members of the worker's
// chain or decode service the router lists. Versions of one router mean nothing to another; what
// several list together is Memberships' matter. Deterministic.
//
// JOINING -(registered)-> MEMBER -(the router does not know it any more)-> JOINING
// JOINING -(the answer is of a router that another address leads to)-> ALIAS, which only asks again
// now and then whose address it is.
#ifndef SERVICES_WORKER_CORE_ROUTER_MEMBERSHIP_H_
#define SERVICES_WORKER_CORE_ROUTER_MEMBERSHIP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "services/worker/core/peer_worker.h"

namespace baton::worker {

// Heartbeats for news keep so much distance, however fast the cluster changes: joins that come
// together are answered with one list.
inline constexpr int64_t kNewsGapUs = 10'000;
// And those for the load. Routers that share a worker choose by its load as they know it; told with
// the other heartbeats alone, they overload what was idle half a second ago.
inline constexpr int64_t kLoadGapUs = 100'000;

struct MembershipTimes {
  int64_t heartbeat_us = 500'000;
  // A router that no source names is followed until it has been silent for so long.
  int64_t grace_us = 5'000'000;
  // Between asking a router that does not answer.
  int64_t first_backoff_us = 50'000;
  int64_t longest_backoff_us = 2'000'000;
  // An RPC that takes longer than this and than two heartbeats is given up: the router is dead or
  // stopped.
  int64_t rpc_timeout_us = 1'000'000;
};

class RouterMembership {
 public:
  enum class State { kJoining, kMember, kAlias };
  enum class Rpc { kRegister, kHeartbeat };

  RouterMembership(std::string address, const MembershipTimes& times, int64_t now_us);

  // ---- RPCs: one at a time ----

  // The RPC that is due now, which has then begun. `leaving`: a heartbeat would be the last.
  std::optional<Rpc> BeginRpc(int64_t now_us, bool leaving = false);
  // When BeginRpc has something; kNeverUs while one is out.
  int64_t next_rpc_us() const;
  // How each RPC ends. `interval_us`: what the router asks for; 0: nothing.
  void Registered(uint64_t router_incarnation, int64_t interval_us, int64_t now_us);
  void IsAlias(uint64_t router_incarnation, int64_t now_us);
  // `for_good`: nothing that others do can change it.
  void Refused(const absl::Status& status, bool for_good, int64_t now_us);
  // `members`: none with the version that the heartbeat named.
  void HeartbeatTaken(uint64_t view_version, std::vector<PeerWorker> members, int64_t now_us);
  // What the router says of a worker that told it that it drains.
  void DrainHeard(bool told, int needed_requests);
  // Nothing is said to this router any more: it has heard the last heartbeat, or holds nothing.
  void Left() { left_ = true; }
  void Unknown(int64_t now_us);  // The router holds no lease of this worker: it registers at once.
  void Failed(int64_t now_us);   // No answer, or one that makes no sense.

  // Something should be told to the router, or be heard from it, as soon as heartbeats are `gap_us`
  // apart.
  void News(int64_t now_us, int64_t gap_us = kNewsGapUs);
  // Ask now: another address of the same router does not answer any more.
  void AskNow(int64_t now_us);

  // ---- The watch ----

  // Whether one should be opened now, after an RPC that the router has answered; it stands then.
  bool BeginWatch(int64_t now_us);
  void WatchEnded(int64_t now_us);

  // Another address of the same router is its member's now.
  void GiveUpFor(int64_t now_us);

  const std::string& address() const { return address_; }
  State state() const { return state_; }
  uint64_t incarnation() const { return incarnation_; }
  bool answers() const { return state_ == State::kMember && failures_ == 0; }
  bool asked_in_vain() const { return failures_ > 0; }
  int failures() const { return failures_; }  // In a row.
  const absl::Status& refusal() const { return refusal_; }
  bool refused_for_good() const { return refused_for_good_; }
  int64_t refused_since_us() const { return refused_since_us_; }
  int refusals() const { return refusals_; }                    // In a row, with these words.
  int64_t asking_since_us() const { return asking_since_us_; }  // To join.
  // Whether a worker that drains waits for this router. One lost answer does not say that a router
  // is gone, and its requests with it; two in a row do.
  bool counts_for_drain() const { return state_ == State::kMember && failures_ < 2; }
  bool told_of_drain() const { return told_of_drain_; }
  int needed_requests() const { return needed_requests_; }
  bool left() const { return left_; }
  int64_t heard_us() const { return heard_us_; }  // Last; at first when it was created.
  uint64_t view_version() const { return view_version_; }
  // What the router has listed last; it stays when the router does not answer, or starts anew.
  const std::vector<PeerWorker>& listed() const { return listed_; }
  // Whether that has changed since this was asked last.
  bool TakeChange() { return std::exchange(changed_, false); }

  bool wanted = true;  // Some source names the address.

 private:
  void Answered(int64_t now_us);
  void Accepted();
  void DropMembers();

  const std::string address_;
  const MembershipTimes times_;
  int64_t asking_since_us_;
  State state_ = State::kJoining;
  uint64_t incarnation_ = 0;
  absl::Status refusal_;  // OK: not refused, or accepted since.
  bool refused_for_good_ = false;
  int64_t refused_since_us_ = 0;
  int refusals_ = 0;
  int64_t refused_backoff_us_ = 0;

  bool rpc_under_way_ = false;
  bool last_under_way_ = false;  // And it is the last heartbeat.
  bool left_ = false;
  bool told_of_drain_ = false;
  int needed_requests_ = 0;
  int64_t news_gap_us_ = kNeverUs;  // News that came while a call was out; kNeverUs: none.
  int64_t interval_us_;
  int64_t next_us_;
  int64_t began_us_ = 0;  // The last heartbeat.
  int64_t backoff_us_;
  int failures_ = 0;
  int64_t heard_us_;

  bool watching_ = false;
  int64_t watch_from_us_ = 0;  // The next may be opened.

  std::vector<PeerWorker> listed_;
  bool changed_ = false;
  uint64_t view_version_ = 0;  // 0: none.
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_ROUTER_MEMBERSHIP_H_

// A worker's membership at one router: its lease call (Cluster.Lease), when the next heartbeat is
// due on it, and which members of the worker's chain or decode service the router lists. What
// several routers list together is Memberships' matter. Deterministic.
//
// JOINING -(registered)-> MEMBER -(the router refuses it, or its lease is over)-> JOINING
// JOINING, MEMBER -(another call holds the lease)-> ALIAS: the router has another address, and this
// one asks again only now and then.
// A member whose call breaks stays one and asks anew: its lease may last until it is heard.
#ifndef SERVICES_WORKER_CORE_ROUTER_MEMBERSHIP_H_
#define SERVICES_WORKER_CORE_ROUTER_MEMBERSHIP_H_

#include <algorithm>
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
// together are told by one list.
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
  // What is not answered within this and within two heartbeats is given up: the router is dead or
  // stopped.
  int64_t answer_timeout_us = 1'000'000;

  int64_t AnswerTimeoutUs() const { return std::max(answer_timeout_us, 2 * heartbeat_us); }
};

class RouterMembership {
 public:
  enum class State { kJoining, kMember, kAlias };
  enum class Due {
    kAsk,        // For a lease, by a new call.
    kHeartbeat,  // On the call that stands.
    kGiveUp,     // The call: the router has not answered in time.
  };

  RouterMembership(std::string address, const MembershipTimes& times, int64_t now_us);

  // ---- The lease call: one at a time, and on it one message that is to be answered ----

  std::optional<Due> due(int64_t now_us) const;
  // When there is something; kNeverUs: not before the router is heard.
  int64_t next_us() const;
  // What was due is done: the call `lease` is opened, a heartbeat is sent.
  void Ask(uint64_t lease, int64_t now_us);
  void Beat(int64_t now_us, bool leaving);

  // `interval_us`: of heartbeats, as the router asks for; 0: nothing.
  void Registered(uint64_t router_incarnation, int64_t interval_us, int64_t now_us);
  // `members`: nullopt if they are those that the call has told last.
  void HeartbeatTaken(std::optional<std::vector<PeerWorker>> members, int64_t now_us);
  // What the router says of a worker that told it that it drains.
  void DrainHeard(bool told, int needed_requests);
  // How a call ends, or why none is opened:
  // `for_good`: nothing that others do can change it.
  void Refused(const absl::Status& status, bool for_good, int64_t now_us);
  void IsAlias(int64_t now_us);
  void Unknown(int64_t now_us);  // The lease is over: it registers at once.
  void Failed(int64_t now_us);   // No answer, or one that makes no sense.
  // Nothing is said to this router any more: it has heard the last heartbeat, or holds nothing.
  void Left();

  // Something should be told to the router, or be heard from it, as soon as heartbeats are `gap_us`
  // apart.
  void News(int64_t now_us, int64_t gap_us = kNewsGapUs);
  // Ask now: another address of the same router does not answer any more.
  void AskNow(int64_t now_us);

  const std::string& address() const { return address_; }
  State state() const { return state_; }
  uint64_t lease() const { return lease_; }  // The call that is open; 0: none is.
  // The last heartbeat is under way.
  bool leaves() const { return last_under_way_; }
  uint64_t incarnation() const { return incarnation_; }
  bool answers() const { return lease_ != 0 && !asking_; }  // It has registered by that call.
  int failures() const { return failures_; }                // In a row.
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
  // What the router has listed last; it stays when the router does not answer, or starts anew.
  const std::vector<PeerWorker>& listed() const { return listed_; }
  // Whether that has changed since this was asked last.
  bool TakeChange() { return std::exchange(changed_, false); }

  bool wanted = true;  // Some source names the address.

 private:
  void Answered(int64_t now_us);
  void Accepted();
  void Close();

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

  uint64_t lease_ = 0;
  bool asking_ = false;              // The call has not been answered yet.
  int64_t answer_by_us_ = kNeverUs;  // kNeverUs: no answer is awaited.
  bool last_under_way_ = false;
  bool left_ = false;
  bool told_of_drain_ = false;
  int needed_requests_ = 0;
  int64_t news_gap_us_ = kNeverUs;  // News since the heartbeat that is under way; kNeverUs: none.
  int64_t interval_us_;
  int64_t next_us_;
  int64_t began_us_ = 0;  // The last heartbeat.
  int64_t backoff_us_;
  int failures_ = 0;
  int64_t heard_us_;

  std::vector<PeerWorker> listed_;
  bool changed_ = false;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_ROUTER_MEMBERSHIP_H_

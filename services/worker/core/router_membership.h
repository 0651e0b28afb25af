// A worker's membership at one router: when the next RPC is due, what the router's view lists and
// which version of it has been applied. Views of one router mean nothing to another; what several
// make together is Memberships' matter. Deterministic.
//
// JOINING -(registered)-> MEMBER -(the router does not know it any more)-> JOINING
// JOINING -(the answer is of a router that another address leads to)-> ALIAS, which only asks again
// now and then whose address it is.
#ifndef SERVICES_WORKER_CORE_ROUTER_MEMBERSHIP_H_
#define SERVICES_WORKER_CORE_ROUTER_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "services/worker/core/peer_worker.h"

namespace baton::worker {

struct MembershipTimes {
  int64_t heartbeat_us = 500'000;
  // After another registration, workers that were known and that the router does not list (yet) are
  // kept for so long, unless another incarnation of theirs is listed: a router that has just
  // started hears of its workers one by one, within the backoff of their registrations.
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
  using Listed = std::map<InstanceRef, PeerWorker>;

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
  // `workers` of a view of the same version as the one at hand mean nothing, and none came with the
  // version that the heartbeat named. `own_joined_version`: of this worker in that view.
  void HeartbeatTaken(uint64_t view_version, std::vector<PeerWorker> workers,
                      uint64_t own_joined_version, int64_t now_us);
  // What the router says of a worker that told it that it drains.
  void DrainHeard(bool told, int needed_requests);
  // Nothing is said to this router any more: it has heard the last heartbeat, or holds nothing.
  void Left() { left_ = true; }
  void Unknown(int64_t now_us);  // The router holds no lease of this worker: it registers at once.
  void Failed(int64_t now_us);   // No answer, or one that makes no sense.

  // Something should be told to the router at once, or be heard from it.
  void News(int64_t now_us);
  // Ask now: another address of the same router does not answer any more.
  void AskNow(int64_t now_us);

  // ---- The watch ----

  // Whether one should be opened now, after an RPC that the router has answered; it stands then.
  bool BeginWatch(int64_t now_us);
  void WatchEnded(int64_t now_us);

  // ---- The view ----

  // Every endpoint of the view has been tried: the router is told at once which stand.
  void Apply(int64_t now_us);
  // Takes the place of another address of the same router, view included.
  void TakeOver(RouterMembership& other, int64_t now_us);
  // Keeps what another address of this router listed, as after a registration of its own.
  void Adopt(const RouterMembership& other, int64_t now_us);
  // What it lists counts no more: the whole view is asked for at the next heartbeat.
  void DropView();
  // Gives up the kept whose time is over; true if there were any.
  bool ExpireKept(int64_t now_us);

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
  int64_t heard_us() const { return heard_us_; }    // Last; at first when it was created.
  int64_t joined_us() const { return joined_us_; }  // Registered since; while a member.
  // This life of the router has said since that it holds this worker no more.
  bool forgotten() const { return forgotten_; }
  // When the last RPC was sent that the router took: it held the worker then.
  int64_t taken_us() const { return taken_us_; }
  int64_t keep_until_us() const { return kept_.empty() ? kNeverUs : keep_until_us_; }
  const Listed& listed() const { return listed_; }
  const Listed& kept() const { return kept_; }
  uint64_t view_version() const { return view_version_; }
  uint64_t applied_version() const { return applied_version_; }

  // Whether `listed` or `kept` have changed since this was asked last.
  bool TakeChange() { return std::exchange(view_changed_, false); }
  // Who has been given up and has joined again since this was asked last, between two views that
  // both list it, and after this worker had joined.
  struct Rejoined {
    InstanceRef peer;
    int64_t held_until_us = 0;  // At least: the router was asked then, and had it still.
  };
  std::vector<Rejoined> TakeRejoined() { return std::exchange(rejoined_, {}); }
  // Since when it is known to list this peer without a gap; kNeverUs: it doesn't.
  int64_t ListedSinceUs(const InstanceRef& peer) const;

  bool wanted = true;  // Some source names the address.

 private:
  void Answered(int64_t now_us);
  void Accepted();
  void NoteRejoined(const Listed& fresh, uint64_t own_joined_version, int64_t now_us);

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
  bool news_ = false;  // Came while a call was out.
  int64_t interval_us_;
  int64_t next_us_;
  int64_t began_us_ = 0;  // The last heartbeat.
  int64_t backoff_us_;
  int failures_ = 0;
  int64_t heard_us_;
  int64_t joined_us_ = 0;
  bool forgotten_ = false;
  int64_t taken_us_ = 0;

  bool watching_ = false;
  int64_t watch_from_us_ = 0;  // The next may be opened.

  Listed listed_;                                   // The last view that came.
  Listed kept_;                                     // Not in it, and not given up yet.
  std::map<InstanceRef, int64_t> listed_since_us_;  // For the peers in `listed_`.
  std::vector<Rejoined> rejoined_;
  int64_t keep_until_us_ = 0;
  bool view_changed_ = false;
  uint64_t view_version_ = 0;     // 0: none.
  int64_t viewed_us_ = 0;         // When the router was last asked that still had this version.
  uint64_t applied_version_ = 0;  // The last whose endpoints were tried.
  uint64_t told_version_ = 0;     // That the last heartbeat named.
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_ROUTER_MEMBERSHIP_H_

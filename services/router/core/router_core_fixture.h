// The fixture of the router core's tests.
#ifndef SERVICES_ROUTER_CORE_ROUTER_CORE_FIXTURE_H_
#define SERVICES_ROUTER_CORE_ROUTER_CORE_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "services/router/core/router_core.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {

inline constexpr int64_t kDeadlineUs = 1'000'000;
inline constexpr uint64_t kIncarnation = 0xab;

// Drives one RouterCore: events in, actions looked at by type. Checks the invariants after every
// event.
class RouterCoreTest : public ::testing::Test {
 protected:
  RouterCoreTest() { Reset({}); }

  void Reset(RouterLimits limits) {
    limits.incarnation = kIncarnation;
    limits.policy = Policy::kLeastLoad;  // What it chooses is seen at a glance.
    if (limits.max_requests == 0) limits.max_requests = 100;
    limits.membership.lease_us = kDeadlineUs * 10;
    // As in a large cluster, where members hear of their own chain or decode service alone.
    limits.membership.told_of_all = 0;
    core_.emplace(limits);
  }

  void Handle(const Event& event) {
    actions_.clear();
    core_->Handle(event, now_us_, actions_);
    ASSERT_EQ(core_->CheckInvariants(), absl::OkStatus());
  }

  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const Action& action : actions_) {
      if (const T* match = std::get_if<T>(&action)) found.push_back(*match);
    }
    return found;
  }
  template <typename T>
  T Only() const {
    const std::vector<T> found = All<T>();
    EXPECT_THAT(found, ::testing::SizeIs(1));
    return found.at(0);
  }

  void Join(const std::vector<WorkerInfo>& workers) {
    for (const WorkerInfo& worker : workers) {
      Ask(worker);
      ASSERT_EQ(Only<AnswerLease>().status, absl::OkStatus());
    }
    for (const WorkerInfo& worker : workers) Beat(worker.instance);
  }
  // The worker asks for a lease by a new call.
  void Ask(const WorkerInfo& worker) {
    call_of_[worker.instance] = ++last_lease_call_;
    Handle(LeaseAsked{last_lease_call_, worker, {}, last_lease_call_});
  }
  void Say(const InstanceRef& instance, HeartbeatReceived beat) {
    beat.rpc_id = call_of_.at(instance);
    Handle(beat);
  }
  // The worker is ready, and links all of its members if it speaks for them. One whose call broke
  // has asked anew.
  void Beat(const InstanceRef& instance, const WorkerLoad& load = {}) {
    if (!call_of_.contains(instance)) Ask(core_->membership().Find(instance)->info);
    HeartbeatReceived beat{0, true, load};
    beat.linked = LinkedBy(core_->membership(), instance);
    Say(instance, beat);
  }
  // Lets the probation of a worker that has failed once pass.
  void Forgive(const InstanceRef& instance) {
    now_us_ += MembershipOptions{}.first_probation_us;
    Beat(instance);
    Handle(Tick{});
  }
  // Its process ends, as far as a router can see: its call breaks.
  void Dies(const InstanceRef& instance) {
    Handle(LeaseBroken{call_of_.extract(instance).mapped()});
  }
  void JoinOnePair() { Join({TestStage("c0", 0, 2), TestStage("c0", 1, 2), TestDecode("d0")}); }
  void JoinTwoPairs() {
    Join({TestStage("c0", 0, 1), TestStage("c1", 0, 1), TestDecode("d0"), TestDecode("d1")});
  }

  void Request(uint64_t call_id, const std::string& id = "") {
    Handle(CallSubmitted{call_id, id.empty() ? "r" + std::to_string(call_id) : id, 100, 4,
                         now_us_ + kDeadlineUs});
  }

  // Brings a new request of `client` to a phase and remembers its attempt.
  void Reserving(uint64_t call_id) {
    Request(call_id);
    reserve_ = Only<Reserve>();
  }
  void Prefilling(uint64_t call_id) {
    Reserving(call_id);
    Answer();
  }
  void Decoding(uint64_t call_id) {
    Prefilling(call_id);
    Handle(TokenReceived{reserve_.attempt_id, {7, 0, {}}});
    ASSERT_THAT(All<DeliverToken>(), ::testing::SizeIs(1));
  }
  void Answer() {
    Handle(ReserveReplied{reserve_.attempt_id, Ticket{reserve_.decode, 0, 5, 100, 7, followers_}});
    ASSERT_THAT(All<StartPrefill>(), ::testing::SizeIs(1));
  }

  std::optional<RouterCore> core_;
  std::vector<Action> actions_;
  Reserve reserve_;
  std::vector<InstanceRef> followers_;  // That a ticket names.
  std::map<InstanceRef, uint64_t> call_of_;
  uint64_t last_lease_call_ = 0;
  int64_t now_us_ = 0;
};

inline const absl::Status kBroken = absl::UnavailableError("connection refused");

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_ROUTER_CORE_FIXTURE_H_

// One router's membership by itself: when what is due, and what of its list counts.
#include "services/worker/core/router_membership.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace baton::worker {
namespace {

using Due = RouterMembership::Due;
using State = RouterMembership::State;

constexpr int64_t kMs = 1000;
constexpr int64_t kSecond = 1'000'000;

PeerWorker Worker(const std::string& id, uint64_t incarnation = 1) {
  PeerWorker worker;
  worker.instance = {id, incarnation};
  return worker;
}
std::vector<std::string> Names(const std::vector<PeerWorker>& workers) {
  std::vector<std::string> names;
  names.reserve(workers.size());
  for (const PeerWorker& worker : workers) names.push_back(worker.instance.id);
  return names;
}

class RouterMembershipTest : public testing::Test {
 protected:
  void Ask() {
    ASSERT_EQ(router_.due(now_us_), Due::kAsk);
    router_.Ask(++last_lease_, now_us_);
  }
  void Join(uint64_t incarnation = 7, int64_t interval_us = 0) {
    Ask();
    router_.Registered(incarnation, interval_us, now_us_);
  }
  void Send(bool leaving = false) {
    ASSERT_EQ(router_.due(now_us_), Due::kHeartbeat);
    router_.Beat(now_us_, leaving);
  }
  void Beat(std::optional<std::vector<PeerWorker>> workers = std::nullopt) {
    Send();
    router_.HeartbeatTaken(std::move(workers), now_us_);
  }
  // Time until something is due.
  int64_t Wait() const { return router_.next_us() - now_us_; }

  int64_t now_us_ = 10 * kSecond;
  uint64_t last_lease_ = 0;
  RouterMembership router_{"r:1", {.heartbeat_us = 500 * kMs, .grace_us = 5 * kSecond}, now_us_};
};

TEST_F(RouterMembershipTest, OneAnswerIsAwaitedAtATime) {
  EXPECT_EQ(router_.due(now_us_ - 1), std::nullopt);
  EXPECT_EQ(router_.asking_since_us(), now_us_);
  EXPECT_EQ(router_.heard_us(), now_us_);
  Ask();
  EXPECT_EQ(router_.lease(), 1u);
  EXPECT_EQ(router_.due(now_us_), std::nullopt);
  EXPECT_EQ(Wait(), kSecond) << "until the call is given up";
  EXPECT_FALSE(router_.answers());
  now_us_ += kSecond - 1;
  router_.Registered(7, 0, now_us_);
  EXPECT_TRUE(router_.answers());
  EXPECT_EQ(router_.incarnation(), 7u);
  EXPECT_EQ(router_.heard_us(), now_us_);
  EXPECT_EQ(Wait(), 0) << "it asks for its members";
  Beat();
  EXPECT_EQ(Wait(), 500 * kMs);
  router_.Left();
  EXPECT_EQ(router_.lease(), 0u);
  EXPECT_EQ(router_.next_us(), kNeverUs);
  now_us_ += kSecond;
  EXPECT_EQ(router_.due(now_us_), std::nullopt);
}

TEST_F(RouterMembershipTest, ACallThatIsNotAnsweredInTimeIsGivenUp) {
  Ask();
  now_us_ += kSecond;
  EXPECT_EQ(router_.due(now_us_), Due::kGiveUp);
  router_.Failed(now_us_);
  EXPECT_EQ(router_.lease(), 0u);
  now_us_ += 50 * kMs;
  Join();
  Send();
  now_us_ += kSecond - 1;
  EXPECT_EQ(router_.due(now_us_), std::nullopt);
  now_us_ += 1;
  EXPECT_EQ(router_.due(now_us_), Due::kGiveUp);
}

TEST_F(RouterMembershipTest, TheLastHeartbeatIsTheEnd) {
  Join();
  Beat();
  now_us_ += kSecond;
  Send(/*leaving=*/true);
  EXPECT_TRUE(router_.leaves());
  EXPECT_FALSE(router_.left());
  router_.HeartbeatTaken(std::nullopt, now_us_);
  EXPECT_TRUE(router_.left());
  EXPECT_EQ(router_.next_us(), kNeverUs);
}

TEST_F(RouterMembershipTest, TheRouterMayAskForFasterHeartbeatsAlone) {
  Join(7, 200 * kMs);
  Beat();
  EXPECT_EQ(Wait(), 200 * kMs);
  router_.Unknown(now_us_);
  Join(7, 900 * kMs);
  Beat();
  EXPECT_EQ(Wait(), 500 * kMs);
  router_.Unknown(now_us_);
  EXPECT_EQ(router_.state(), State::kJoining);
  Join(7, 1);
  Beat();
  EXPECT_EQ(Wait(), 1);
}

TEST_F(RouterMembershipTest, FailuresAreAskedAgainLaterAndLater) {
  for (const int64_t wait_ms : {50, 100, 200, 400, 800, 1600, 2000, 2000}) {
    Ask();
    router_.Failed(now_us_);
    EXPECT_EQ(Wait(), wait_ms * kMs);
    now_us_ = router_.next_us();
  }
  EXPECT_EQ(router_.failures(), 8);
  Join();
  EXPECT_EQ(router_.failures(), 0);
  Send();
  router_.Failed(now_us_);
  EXPECT_EQ(router_.lease(), 0u) << "what is not answered ends the call";
  EXPECT_EQ(Wait(), 50 * kMs) << "an answer ends the waiting";
  EXPECT_EQ(router_.state(), State::kMember);
  EXPECT_FALSE(router_.answers());
  EXPECT_TRUE(router_.counts_for_drain()) << "one lost answer says little";
  now_us_ = router_.next_us();
  Ask();
  router_.Failed(now_us_);
  EXPECT_FALSE(router_.counts_for_drain());
}

TEST_F(RouterMembershipTest, MembersStayUntilAnotherRegistrationHasToldThem) {
  Join();
  Beat({{Worker("a")}});
  router_.DrainHeard(true, 3);
  EXPECT_EQ(router_.needed_requests(), 3);
  now_us_ += kSecond;
  router_.Unknown(now_us_);
  EXPECT_EQ(router_.asking_since_us(), now_us_);
  EXPECT_EQ(Wait(), 0);
  Join(8);
  EXPECT_EQ(Names(router_.listed()), std::vector<std::string>{"a"})
      << "as long as nothing else is known";
  EXPECT_FALSE(router_.told_of_drain());
}

TEST_F(RouterMembershipTest, MembersChangeWhenTheyAreTold) {
  Join();
  Beat({{Worker("a")}});
  EXPECT_TRUE(router_.TakeChange());
  now_us_ += kSecond;
  Beat();
  EXPECT_FALSE(router_.TakeChange());
  EXPECT_EQ(Names(router_.listed()), std::vector<std::string>{"a"});
  now_us_ += kSecond;
  Beat(std::vector<PeerWorker>{});
  EXPECT_TRUE(router_.TakeChange());
  EXPECT_TRUE(router_.listed().empty()) << "it is alone";
}

TEST_F(RouterMembershipTest, NewsAreToldAtOnceButNotInABurst) {
  router_.News(now_us_);
  Join();
  Beat();
  router_.News(now_us_ + 3 * kMs);
  EXPECT_EQ(Wait(), 10 * kMs) << "from the last heartbeat on";
  now_us_ += 10 * kMs;
  Beat();
  router_.News(now_us_ + 100 * kMs);
  EXPECT_EQ(Wait(), 100 * kMs);
  router_.News(now_us_ + 200 * kMs);
  EXPECT_EQ(Wait(), 100 * kMs) << "never later than it was to be";
  now_us_ += 100 * kMs;
  Send();
  router_.News(now_us_);  // May have missed what is out.
  router_.HeartbeatTaken(std::nullopt, now_us_ + 4 * kMs);
  EXPECT_EQ(Wait(), 10 * kMs);
  now_us_ = router_.next_us();
  Beat();
  EXPECT_EQ(Wait(), 500 * kMs) << "told once";
}

TEST_F(RouterMembershipTest, TheLoadIsToldSoonAndNotInABurst) {
  Join();
  Beat();
  now_us_ += 30 * kMs;
  router_.News(now_us_, kLoadGapUs);
  EXPECT_EQ(Wait(), 70 * kMs);
  now_us_ += 10 * kMs;
  router_.News(now_us_, kLoadGapUs);
  EXPECT_EQ(Wait(), 60 * kMs);
  now_us_ += 60 * kMs;
  Send();
  now_us_ += 20 * kMs;
  router_.News(now_us_, kLoadGapUs);  // May not be in what was sent.
  router_.HeartbeatTaken(std::nullopt, now_us_);
  EXPECT_EQ(Wait(), 80 * kMs);
  now_us_ += 80 * kMs;
  Beat();
  EXPECT_EQ(Wait(), 500 * kMs) << "all was told";
  now_us_ += 200 * kMs;
  router_.News(now_us_, kLoadGapUs);
  EXPECT_EQ(Wait(), 0);
}

TEST_F(RouterMembershipTest, ARouterThatDoesNotAnswerHearsNoNewsEarly) {
  Join();
  Send();
  router_.Failed(now_us_);
  router_.News(now_us_ + 20 * kMs);
  EXPECT_EQ(Wait(), 50 * kMs);
  router_.AskNow(now_us_);
  EXPECT_EQ(Wait(), 0);
}

TEST_F(RouterMembershipTest, RefusalsAreAskedAgainAtTheRateOfHeartbeats) {
  const absl::Status taken = absl::FailedPreconditionError("rank taken");
  const int64_t first_us = now_us_;
  int times = 0;
  for (const int64_t wait_ms : {50, 100, 200, 400, 500, 500}) {
    Ask();
    router_.Refused(taken, /*for_good=*/false, now_us_);
    EXPECT_EQ(Wait(), wait_ms * kMs);
    EXPECT_EQ(router_.refusals(), ++times);
    now_us_ = router_.next_us();
  }
  EXPECT_EQ(router_.refusal(), taken);
  EXPECT_EQ(router_.refused_since_us(), first_us);
  EXPECT_FALSE(router_.refused_for_good());
  Ask();
  router_.Refused(absl::InvalidArgumentError("other"), /*for_good=*/true, now_us_);
  EXPECT_EQ(router_.refusals(), 1) << "other words";
  EXPECT_TRUE(router_.refused_for_good());
  EXPECT_EQ(Wait(), 2 * kSecond);
  now_us_ = router_.next_us();
  Join();
  EXPECT_TRUE(router_.refusal().ok());
  EXPECT_FALSE(router_.refused_for_good());
  EXPECT_EQ(router_.refusals(), 0);
}

TEST_F(RouterMembershipTest, AnAliasAsksAgainNowAndThen) {
  Join();
  Beat({{Worker("a")}});
  router_.TakeChange();
  router_.Unknown(now_us_);
  Ask();
  router_.IsAlias(now_us_);
  EXPECT_EQ(router_.state(), State::kAlias);
  EXPECT_EQ(router_.lease(), 0u);
  EXPECT_TRUE(router_.listed().empty());
  EXPECT_TRUE(router_.TakeChange());
  EXPECT_EQ(Wait(), 30 * kSecond);
  now_us_ = router_.next_us();
  Ask();
  router_.Failed(now_us_);
  EXPECT_EQ(router_.state(), State::kJoining) << "whose it is now is to be found out";
}

}  // namespace
}  // namespace baton::worker

// What a worker that drains knows of its routers, and how it leaves them.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "services/worker/core/memberships.h"

namespace baton::worker {
namespace {

constexpr int64_t kIntervalUs = 500'000;

// A worker that is a member of routers "a:1" and "b:1", each with a heartbeat to be answered.
class MembershipsDrainTest : public testing::Test {
 protected:
  MembershipsDrainTest() {
    Handle(MembershipTick{});
    for (const std::string address : {"a:1", "b:1"}) {
      Handle(LeaseGranted{Of(address), Of(address) + 100, kIntervalUs});
    }
  }

  void Handle(const MembershipEvent& event) {
    std::vector<MembershipAction> actions;
    core_.Handle(event, now_us_, actions);
    ASSERT_TRUE(core_.CheckInvariants().ok()) << core_.CheckInvariants();
    for (const MembershipAction& action : actions) {
      if (const auto* open = std::get_if<OpenLease>(&action)) {
        lease_[open->address] = open->lease;
      }
      if (const auto* send = std::get_if<SendHeartbeat>(&action)) {
        for (const auto& [address, lease] : lease_) {
          if (lease != send->lease) continue;
          ++sent_[address];
          last_[address] = send->leaving;
        }
      }
      if (const auto* close = std::get_if<CloseLease>(&action)) closed_.push_back(close->lease);
      begin_drain_ += std::get_if<BeginDrain>(&action) != nullptr ? 1 : 0;
    }
  }
  // The call that was opened last.
  uint64_t Of(const std::string& address) const {
    const auto found = lease_.find(address);
    return found == lease_.end() ? 0 : found->second;
  }
  // Answers the heartbeat that is under way to `address`, or ends its call.
  void Answer(const std::string& address, const absl::Status& status, int needed_requests = 0) {
    if (!status.ok()) return Handle(LeaseEnded{Of(address), status});
    HeartbeatAnswered answer{Of(address), {}};
    answer.draining = true;
    answer.needed_requests = needed_requests;
    Handle(answer);
  }
  // So that the next heartbeats go out.
  void Pass() {
    now_us_ += kIntervalUs;
    Handle(MembershipTick{});
  }

  const absl::Status kLost = absl::UnavailableError("lost");
  int64_t now_us_ = 1'000'000;
  std::map<std::string, uint64_t> lease_;  // By address.
  std::map<std::string, int> sent_;
  std::map<std::string, bool> last_;  // Whether the last heartbeat that was sent says so.
  std::vector<uint64_t> closed_;
  int begin_drain_ = 0;
  Memberships core_{[] {
                      MembershipOptions options;
                      options.self.instance = {"self", 1};
                      options.router_addresses = {"a:1", "b:1"};
                      return options;
                    }(),
                    now_us_};
};

TEST_F(MembershipsDrainTest, EveryRouterIsToBeToldAndSaysForWhomItNeedsTheWorker) {
  EXPECT_EQ(core_.drain_news().untold_routers, 2);
  Answer("a:1", absl::OkStatus(), 3);
  EXPECT_EQ(core_.drain_news().untold_routers, 1);
  EXPECT_EQ(core_.drain_news().needed_requests, 3);
  Answer("b:1", absl::OkStatus(), 2);
  EXPECT_EQ(core_.drain_news().untold_routers, 0);
  EXPECT_EQ(core_.drain_news().needed_requests, 5);
}

TEST_F(MembershipsDrainTest, ARouterMayAskForIt) {
  HeartbeatAnswered answer{Of("a:1"), {}};
  answer.drain = true;
  answer.needed_requests = -1;
  answer.draining = true;
  Handle(answer);
  EXPECT_EQ(begin_drain_, 1);
  EXPECT_EQ(core_.drain_news().needed_requests, 0);
}

TEST_F(MembershipsDrainTest, OneLostAnswerFreesNobodyAndTwoDo) {
  Answer("a:1", absl::OkStatus(), 3);
  Answer("b:1", absl::OkStatus(), 2);
  Pass();
  Answer("a:1", kLost);
  EXPECT_EQ(core_.drain_news().needed_requests, 3 + 2);
  Answer("b:1", absl::OkStatus(), 2);
  Pass();
  Answer("a:1", kLost);
  EXPECT_EQ(core_.drain_news().needed_requests, 2);
}

TEST_F(MembershipsDrainTest, TheLastHeartbeatsGoOutAtOnce) {
  Answer("a:1", absl::OkStatus());
  Answer("b:1", absl::OkStatus());
  now_us_ += 20'000;
  Handle(Leaves{});
  EXPECT_TRUE(last_["a:1"] && last_["b:1"]);
}

TEST(MembershipsAloneTest, WhoHasNoRouterHasNotLeftBeforeItLeaves) {
  Memberships core(MembershipOptions{}, 0);
  EXPECT_FALSE(core.left());
  std::vector<MembershipAction> actions;
  core.Handle(Leaves{}, 0, actions);
  EXPECT_TRUE(core.left());
}

TEST_F(MembershipsDrainTest, ARouterThatHasStartedAnewIsToldAnew) {
  Answer("a:1", absl::OkStatus(), 3);
  Answer("b:1", absl::OkStatus());
  Pass();
  Answer("a:1", absl::NotFoundError("who?"));
  EXPECT_EQ(core_.drain_news().needed_requests, 0);
  Handle(LeaseGranted{Of("a:1"), 999, kIntervalUs});
  EXPECT_EQ(core_.drain_news().untold_routers, 1);
}

TEST_F(MembershipsDrainTest, HasLeftWhenEveryRouterThatAnswersHasHeardIt) {
  Answer("a:1", absl::OkStatus());
  Answer("b:1", absl::OkStatus());
  EXPECT_FALSE(core_.left());
  Pass();
  Handle(Leaves{});
  EXPECT_FALSE(last_["a:1"]);
  Answer("a:1", absl::OkStatus());  // The last one but one, which had been sent before.
  EXPECT_FALSE(core_.left());
  Pass();
  EXPECT_TRUE(last_["a:1"]);
  Answer("a:1", absl::OkStatus());
  EXPECT_FALSE(core_.left());
  Answer("b:1", kLost);
  EXPECT_TRUE(core_.left()) << "who does not answer is not waited for";
  const int sent = sent_["a:1"];
  Pass();
  Handle(LeaseEnded{Of("a:1"), absl::NotFoundError("it has left")});
  EXPECT_EQ(sent_["a:1"], sent) << "nothing more is said to a router that was left";
}

TEST_F(MembershipsDrainTest, NobodyIsJoinedAnewWhileLeaving) {
  Answer("a:1", absl::OkStatus());
  Answer("b:1", absl::OkStatus(), 0);
  Pass();
  const uint64_t joined = Of("a:1");
  Handle(Leaves{});
  lease_.erase("a:1");
  Answer("b:1", absl::OkStatus());
  Pass();
  Answer("b:1", absl::OkStatus());
  Handle(LeaseEnded{joined, absl::NotFoundError("who?")});
  EXPECT_TRUE(core_.left());
  Pass();
  EXPECT_EQ(Of("a:1"), 0u) << "a registration";
}

// A router that holds no lease of a worker that leaves: to register now would be to come back.
TEST_F(MembershipsDrainTest, WhoLeavesRegistersNowhereAgain) {
  Answer("a:1", absl::NotFoundError("not registered"));
  const uint64_t asked = Of("a:1");
  Answer("b:1", absl::OkStatus());
  lease_.clear();
  Handle(Leaves{});
  EXPECT_EQ(closed_, std::vector<uint64_t>{asked}) << "what is asked is taken back";
  Handle(LeaseGranted{asked, 101, kIntervalUs});
  Pass();
  EXPECT_EQ(Of("a:1"), 0u) << "a registration";
}

}  // namespace
}  // namespace baton::worker

#include "services/router/discovery/core/announcer.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

constexpr int64_t kSecond = 1'000'000;
using Addresses = std::vector<std::string>;
using Pods = std::map<std::string, Pod>;

Pods MakePods(std::initializer_list<std::string> ips, int64_t restarts = 0, int port = 0) {
  Pods pods;
  for (const std::string& ip : ips) pods[ip] = {"pod-" + ip, ip, ip, port, restarts, false};
  return pods;
}

TEST(AnnouncerTest, AnnouncesToNewPodsAtOnceAndThenEveryFiveSeconds) {
  Announcer announcer(7);
  EXPECT_TRUE(announcer.SetPods(MakePods({"10.0.0.1", "10.0.0.2"}), kSecond).empty());
  EXPECT_EQ(announcer.BeginAnnouncing(kSecond), (Addresses{"10.0.0.1:7", "10.0.0.2:7"}));
  EXPECT_EQ(announcer.BeginAnnouncing(kSecond), Addresses{}) << "one at a time";
  announcer.Answered("10.0.0.1:7", absl::OkStatus(), kSecond);
  EXPECT_EQ(announcer.NextDeadlineUs(), 6 * kSecond);
  EXPECT_EQ(announcer.BeginAnnouncing(6 * kSecond), Addresses{"10.0.0.1:7"});
}

TEST(AnnouncerTest, UsesThePodsOwnPortAndLeavesOutPodsWithoutAny) {
  Announcer announcer(0);
  Pods pods = MakePods({"fd00::1"}, 0, 30010);
  pods.merge(MakePods({"10.0.0.2"}));
  pods["no ip"] = {"c", "no ip", "", 1, 0, false};
  pods["leaves"] = {"d", "leaves", "10.0.0.4", 1, 0, true};
  announcer.SetPods(pods, 0);
  EXPECT_EQ(announcer.BeginAnnouncing(0), Addresses{"[fd00::1]:30010"});
}

TEST(AnnouncerTest, FailuresWaitLongerUntilTheContainerStartsAgain) {
  Announcer announcer(7);
  announcer.SetPods(MakePods({"10.0.0.1"}), 0);
  int64_t now_us = 0;
  int64_t last_us = 0;
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(announcer.BeginAnnouncing(now_us).size(), 1u);
    announcer.Answered("10.0.0.1:7", absl::UnavailableError("refused"), now_us);
    const int64_t pause_us = announcer.NextDeadlineUs() - now_us;
    EXPECT_GE(pause_us, last_us);
    EXPECT_LE(pause_us, 5 * kSecond);
    last_us = pause_us;
    now_us += pause_us;
  }
  EXPECT_EQ(announcer.failures("10.0.0.1:7"), 10);
  announcer.BeginAnnouncing(now_us);
  announcer.Answered("10.0.0.1:7", absl::UnimplementedError("no worker"), now_us);
  EXPECT_EQ(announcer.NextDeadlineUs(), now_us + 30 * kSecond);
  announcer.SetPods(MakePods({"10.0.0.1"}, 1), now_us);
  EXPECT_EQ(announcer.BeginAnnouncing(now_us), Addresses{"10.0.0.1:7"});
}

TEST(AnnouncerTest, ARestartDuringAnAnnouncementIsAnnouncedTo) {
  Announcer announcer(7);
  announcer.SetPods(MakePods({"10.0.0.1"}), 0);
  announcer.BeginAnnouncing(0);
  announcer.SetPods(MakePods({"10.0.0.1"}, 1), 1);
  EXPECT_EQ(announcer.BeginAnnouncing(1), Addresses{});
  announcer.Answered("10.0.0.1:7", absl::OkStatus(), 2);
  EXPECT_EQ(announcer.BeginAnnouncing(2), Addresses{"10.0.0.1:7"});
}

TEST(AnnouncerTest, WhoIsGoneIsForgottenWithItsAnnouncement) {
  Announcer announcer(7);
  announcer.SetPods(MakePods({"10.0.0.1", "10.0.0.2"}), 0);
  announcer.BeginAnnouncing(0);
  EXPECT_EQ(announcer.SetPods(MakePods({"10.0.0.2"}), 1), Addresses{"10.0.0.1:7"});
  announcer.Answered("10.0.0.1:7", absl::OkStatus(), 2);
  EXPECT_EQ(announcer.size(), 1u);
}

TEST(AnnouncerTest, FewAreUnderWayTogether) {
  Announcer announcer(7);
  Pods pods;
  for (int i = 0; i < 200; ++i) {
    const std::string ip = absl::StrCat("10.0.1.", i);
    pods[ip] = {ip, ip, ip, 0, 0, false};
  }
  announcer.SetPods(pods, 0);
  const Addresses first = announcer.BeginAnnouncing(0);
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(announcer.BeginAnnouncing(0), Addresses{});
  for (const std::string& address : first) announcer.Answered(address, absl::OkStatus(), 0);
  EXPECT_EQ(announcer.BeginAnnouncing(0).size(), 64u);
}

}  // namespace
}  // namespace baton::router

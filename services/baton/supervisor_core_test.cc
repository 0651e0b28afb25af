#include "services/baton/supervisor_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000;

SupervisorLimits TestLimits() {
  SupervisorLimits limits;
  limits.start_timeout_us = 60 * kSecond;
  limits.stop_timeout_us = 10 * kSecond;
  limits.restarts_in_a_row = 3;
  limits.permanent_exit_codes = {2, 3};
  return limits;
}

std::string Text(const SupervisorAction& action) {
  struct Visitor {
    std::string operator()(const StartChild& a) const { return absl::StrCat("start ", a.child); }
    std::string operator()(const TermChildren&) const { return "term"; }
    std::string operator()(const KillChild& a) const { return absl::StrCat("kill ", a.child); }
    std::string operator()(const TellOfChild& a) const {
      return absl::StrCat("tell ", a.child, " ", a.text);
    }
    std::string operator()(const Finish& a) const { return "finish " + a.status.ToString(); }
  };
  return std::visit(Visitor(), action);
}

class SupervisorCoreTest : public testing::Test {
 protected:
  static std::vector<std::string> Texts(const SupervisorActions& actions) {
    std::vector<std::string> texts;
    for (const SupervisorAction& action : actions) texts.push_back(Text(action));
    return texts;
  }
  void BeReady() {
    core_.Begin(0);
    core_.OnReady();
  }
  std::vector<std::string> End(size_t child, const ChildEnd& end, int64_t now_us) {
    return Texts(core_.OnEnded(child, end, now_us));
  }

  SupervisorCore core_{TestLimits(), {"router", "decode-0"}};
};

TEST_F(SupervisorCoreTest, TheOthersWaitUntilTheLeaderListens) {
  SupervisorLimits limits = TestLimits();
  limits.leaders = 1;
  SupervisorCore core(limits, {"router", "decode-0", "decode-1"});
  EXPECT_THAT(Texts(core.Begin(0)), ElementsAre("start 0"));
  EXPECT_THAT(Texts(core.OnListening(0, kSecond)), ElementsAre("start 1", "start 2"));
  EXPECT_THAT(Texts(core.OnListening(1, kSecond)), IsEmpty());
  core.OnReady();
  // Started again, the leader releases no others: they already run.
  core.OnEnded(0, {.exit_code = 1}, 2 * kSecond);
  EXPECT_THAT(Texts(core.OnTime(3 * kSecond)), ElementsAre("start 0"));
  EXPECT_THAT(Texts(core.OnListening(0, 3 * kSecond)), IsEmpty());
}

TEST_F(SupervisorCoreTest, ALeaderThatCannotListenEndsTheStartAlone) {
  SupervisorLimits limits = TestLimits();
  limits.leaders = 1;
  SupervisorCore core(limits, {"router", "decode-0"});
  core.Begin(0);
  EXPECT_THAT(
      Texts(core.OnEnded(0, {.exit_code = 1, .last_words = "cannot listen on x"}, kSecond)),
      ElementsAre(
          "finish FAILED_PRECONDITION: router ended with exit code 1 before the cluster was "
          "ready: cannot listen on x"));
  EXPECT_THAT(Texts(core.OnListening(0, kSecond)), IsEmpty());  // It was on its way.
}

TEST_F(SupervisorCoreTest, StartsAllAndStopsAllOnASignal) {
  EXPECT_THAT(Texts(core_.Begin(0)), ElementsAre("start 0", "start 1"));
  core_.OnReady();
  EXPECT_EQ(core_.NextTimeUs(), SupervisorCore::kNever);
  EXPECT_THAT(Texts(core_.OnStopSignal(kSecond)), ElementsAre("term"));
  EXPECT_THAT(End(0, {.exit_code = 0}, 2 * kSecond), IsEmpty());
  EXPECT_THAT(End(1, {.exit_code = 0}, 2 * kSecond), ElementsAre("finish OK"));
  EXPECT_EQ(core_.NextTimeUs(), SupervisorCore::kNever);
}

TEST_F(SupervisorCoreTest, AnEndBeforeReadyEndsAllWithItsReason) {
  core_.Begin(0);
  EXPECT_THAT(End(1, {.exit_code = 1, .last_words = "cannot listen on 127.0.0.1:80"}, kSecond),
              ElementsAre("term"));
  EXPECT_THAT(End(0, {.exit_code = 0}, kSecond),
              ElementsAre("finish FAILED_PRECONDITION: decode-0 ended with exit code 1 before the "
                          "cluster was ready: cannot listen on 127.0.0.1:80"));
}

TEST_F(SupervisorCoreTest, TheStartTimeoutNamesWhatIsMissing) {
  core_.Begin(0);
  core_.OnWaiting("decode-0 has not registered");
  EXPECT_EQ(core_.NextTimeUs(), 60 * kSecond);
  EXPECT_THAT(Texts(core_.OnTime(60 * kSecond - 1)), IsEmpty());
  EXPECT_THAT(Texts(core_.OnTime(60 * kSecond)), ElementsAre("term"));
  End(0, {}, 61 * kSecond);
  EXPECT_THAT(
      End(1, {}, 61 * kSecond),
      ElementsAre("finish DEADLINE_EXCEEDED: not ready after 60000 ms (--start-timeout-ms): "
                  "decode-0 has not registered"));
}

TEST_F(SupervisorCoreTest, ATimeoutBeforeAnythingWasAskedNamesTheFirstThatDoesNotListen) {
  core_.Begin(0);
  core_.OnTime(60 * kSecond);
  End(0, {}, 61 * kSecond);
  EXPECT_THAT(End(1, {}, 61 * kSecond),
              ElementsAre("finish DEADLINE_EXCEEDED: not ready after 60000 ms "
                          "(--start-timeout-ms): router does not listen"));
}

TEST_F(SupervisorCoreTest, ADeathLaterIsMadeGoodWithGrowingPauses) {
  BeReady();
  EXPECT_THAT(End(1, {.signal = SIGKILL}, kSecond),
              ElementsAre("tell 1 was ended by signal 9 (Killed); starting it again in 500 ms"));
  EXPECT_EQ(core_.NextTimeUs(), kSecond + kSecond / 2);
  EXPECT_THAT(Texts(core_.OnTime(kSecond)), IsEmpty());
  EXPECT_THAT(Texts(core_.OnTime(kSecond + kSecond / 2)), ElementsAre("start 1"));
  EXPECT_THAT(End(1, {.exit_code = 1}, 2 * kSecond),
              ElementsAre("tell 1 ended with exit code 1; starting it again in 1000 ms"));
  EXPECT_THAT(Texts(core_.OnTime(3 * kSecond)), ElementsAre("start 1"));
  // A long life is no part of a row.
  EXPECT_THAT(End(1, {.exit_code = 1}, 33 * kSecond),
              ElementsAre("tell 1 ended with exit code 1; starting it again in 500 ms"));
}

TEST_F(SupervisorCoreTest, ACrashLoopEndsAllWithItsReason) {
  BeReady();
  int64_t now_us = kSecond;
  for (int death = 0; death < 3; ++death) {
    End(1, {.exit_code = 1}, now_us);
    now_us = core_.NextTimeUs();
    EXPECT_THAT(Texts(core_.OnTime(now_us)), ElementsAre("start 1"));
  }
  EXPECT_THAT(End(1, {.exit_code = 1, .last_words = "no memory"}, now_us), ElementsAre("term"));
  EXPECT_THAT(
      End(0, {}, now_us),
      ElementsAre("finish ABORTED: decode-0 ended 4 times in a row, each in less than 30 s; "
                  "the last time it ended with exit code 1: no memory"));
}

TEST_F(SupervisorCoreTest, APermanentErrorIsNotTriedAgain) {
  BeReady();
  EXPECT_THAT(End(1, {.exit_code = 3, .last_words = "layer 0 differs"}, kSecond),
              ElementsAre("term"));
  EXPECT_THAT(End(0, {}, kSecond),
              ElementsAre("finish FAILED_PRECONDITION: decode-0 can't go on and is not started "
                          "again: layer 0 differs"));
}

TEST_F(SupervisorCoreTest, ASecondSignalKillsAtOnce) {
  BeReady();
  core_.OnStopSignal(kSecond);
  End(0, {}, kSecond);
  EXPECT_THAT(Texts(core_.OnStopSignal(kSecond)), ElementsAre("kill 1"));
  EXPECT_THAT(End(1, {.signal = SIGKILL}, kSecond),
              ElementsAre("finish CANCELLED: killed on a second signal"));
}

TEST_F(SupervisorCoreTest, WhoDoesNotStopIsKilled) {
  BeReady();
  core_.OnStopSignal(kSecond);
  EXPECT_EQ(core_.NextTimeUs(), 11 * kSecond);
  End(0, {}, kSecond);
  EXPECT_THAT(Texts(core_.OnTime(11 * kSecond)),
              ElementsAre("tell 1 did not stop within 10000 ms and is killed", "kill 1"));
  EXPECT_THAT(End(1, {.signal = SIGKILL}, 11 * kSecond), ElementsAre("finish OK"));
}

TEST_F(SupervisorCoreTest, NobodyIsStartedAgainOnceTheEndHasBegun) {
  BeReady();
  End(1, {.exit_code = 1}, kSecond);
  EXPECT_THAT(Texts(core_.OnStopSignal(kSecond)), ElementsAre("term"));
  EXPECT_THAT(End(0, {}, kSecond), ElementsAre("finish OK"));
  EXPECT_THAT(Texts(core_.OnTime(100 * kSecond)), IsEmpty());
}

TEST_F(SupervisorCoreTest, AChildThatCannotBeStartedEndsAll) {
  core_.Begin(0);
  EXPECT_THAT(Texts(core_.OnStartFailed(1, "fork: Resource temporarily unavailable", 0)),
              ElementsAre("term"));
  EXPECT_THAT(End(0, {}, 1),
              ElementsAre("finish INTERNAL: decode-0 can't be started: fork: Resource temporarily "
                          "unavailable"));
}

}  // namespace
}  // namespace baton

#include "services/baton/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/baton/child_pipes.h"

namespace baton {
namespace {

// Children are shells: what they leave in a directory shows what they lived through.
class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() {
    std::string pattern = testing::TempDir() + "/supervisor-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~SupervisorTest() override { std::filesystem::remove_all(directory_); }

  ChildSpec Shell(const std::string& name, const std::string& script) const {
    return {
        name, {"-c", script}, {"PATH=/usr/bin:/bin", absl::StrCat("DIR=", directory_.string())}};
  }
  // `then` is called as soon as it has started.
  static SupervisorWatch ReadyWhen(
      std::function<bool()> ready, std::function<void()> then = [] {}) {
    return {[ready = std::move(ready), then = std::move(then), started = false]() mutable {
              if (!started && ready()) {
                started = true;
                then();
              }
              return StartNews{.started = started};
            },
            nullptr};
  }
  bool Exists(const std::string& file) const { return std::filesystem::exists(directory_ / file); }

  std::filesystem::path directory_;
};

TEST_F(SupervisorTest, AChildThatDiesWhileStartingUpEndsAllWithItsReason) {
  Supervisor supervisor("/bin/sh", {});
  supervisor.Add(Shell("good", "sleep 60"));
  supervisor.Add(Shell("bad", "echo 'baton worker: no such model' >&2; exit 3"));
  const absl::Status status = supervisor.Run(ReadyWhen([] { return false; }));
  EXPECT_EQ(status.message(),
            "bad ended with exit code 3 before the cluster was ready: no such model");
}

TEST_F(SupervisorTest, AnExecutableThatIsNotThereEndsAll) {
  Supervisor supervisor("/absent/baton", {});
  supervisor.Add(Shell("child", ""));
  const absl::Status status = supervisor.Run(ReadyWhen([] { return false; }));
  EXPECT_EQ(status.message(), "child ended with exit code 127 before the cluster was ready");
}

TEST_F(SupervisorTest, AFollowerStartsWhenItsLeaderListens) {
  SupervisorLimits limits;
  limits.leaders = 1;
  Supervisor supervisor("/bin/sh", limits);
  supervisor.Add(
      Shell("router", absl::StrCat("[ -e $DIR/follower ] && exit 1; touch $DIR/leader; eval \"echo "
                                   "listening 17 >&$",
                                   kReportVariable, "\"; while true; do sleep 0.05; done")));
  supervisor.Add(Shell("follower",
                       "[ -e $DIR/leader ] || exit 1; touch $DIR/follower; "
                       "while true; do sleep 0.05; done"));
  SupervisorWatch watch =
      ReadyWhen([this] { return Exists("follower"); }, [] { kill(getpid(), SIGTERM); });
  std::vector<std::string> heard;
  watch.on_incarnation = [&](const std::string& name, uint64_t incarnation) {
    heard.push_back(absl::StrCat(name, " ", incarnation));
  };
  const absl::Status status = supervisor.Run(watch);
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_FALSE(heard.empty());
  EXPECT_EQ(heard[0], "router 17");
  std::sort(heard.begin() + 1, heard.end());
  EXPECT_EQ(std::vector<std::string>(heard.begin() + 1, heard.end()),
            (std::vector<std::string>{"follower 0", "router 0"}));
}

TEST_F(SupervisorTest, StopsChildrenWithSigtermWhenAsked) {
  Supervisor supervisor("/bin/sh", {});
  supervisor.Add(Shell("child",
                       "trap 'touch $DIR/stopped; exit 0' TERM; touch $DIR/up; "
                       "while true; do sleep 0.05; done"));
  const absl::Status status =
      supervisor.Run(ReadyWhen([this] { return Exists("up"); }, [] { kill(getpid(), SIGTERM); }));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Exists("stopped"));
}

TEST_F(SupervisorTest, KillsAChildThatDoesNotStop) {
  SupervisorLimits limits;
  limits.stop_timeout_us = 300'000;
  Supervisor supervisor("/bin/sh", limits);
  supervisor.Add(Shell("deaf", "trap '' TERM; touch $DIR/up; while true; do sleep 0.05; done"));
  const absl::Status status =
      supervisor.Run(ReadyWhen([this] { return Exists("up"); }, [] { kill(getpid(), SIGTERM); }));
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(SupervisorTest, ASecondSignalKills) {
  SupervisorLimits limits;
  limits.stop_timeout_us = 3600'000'000;  // The test would not end.
  Supervisor supervisor("/bin/sh", limits);
  // The child asks for the second signal when it has got the first one's SIGTERM.
  supervisor.Add(Shell("deaf", absl::StrCat("trap 'kill -INT ", getpid(),
                                            "' TERM; touch $DIR/up; "
                                            "while true; do sleep 0.05; done")));
  const absl::Status status =
      supervisor.Run(ReadyWhen([this] { return Exists("up"); }, [] { kill(getpid(), SIGINT); }));
  EXPECT_EQ(status.message(), "killed on a second signal");
}

TEST_F(SupervisorTest, StartsAChildAgainThatDiesLater) {
  Supervisor supervisor("/bin/sh", {});
  // The first life ends once it is told that start-up is over; the second asks for the end.
  supervisor.Add(Shell(
      "child", absl::StrCat("if [ -e $DIR/once ]; then touch $DIR/twice; kill -TERM ", getpid(),
                            "; sleep 60; fi; touch $DIR/once; "
                            "while [ ! -e $DIR/ready ]; do sleep 0.05; done; exit 1")));
  const absl::Status status = supervisor.Run(ReadyWhen(
      [this] { return Exists("once"); }, [this] { std::ofstream(directory_ / "ready") << "yes"; }));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Exists("twice"));
}

}  // namespace
}  // namespace baton

#include "services/baton/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

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
  bool Exists(const std::string& file) const { return std::filesystem::exists(directory_ / file); }

  std::filesystem::path directory_;
};

TEST_F(SupervisorTest, AChildThatDiesWhileStartingUpIsAnErrorWithItsName) {
  Supervisor supervisor("/bin/sh");
  supervisor.Add(Shell("good", "sleep 60"));
  supervisor.Add(Shell("bad", "exit 3"));
  const absl::Status status = supervisor.Run([] { return false; }, 2000);
  EXPECT_EQ(status.message(),
            "bad ended with exit code 3 before the cluster was ready; its log above says why");
}

TEST_F(SupervisorTest, StopsChildrenWithSigtermWhenAsked) {
  Supervisor supervisor("/bin/sh");
  supervisor.Add(Shell("child",
                       "trap 'touch $DIR/stopped; exit 0' TERM; touch $DIR/up; "
                       "while true; do sleep 0.05; done"));
  const absl::Status status = supervisor.Run(
      [this] {
        if (!Exists("up")) return false;
        kill(getpid(), SIGTERM);
        return true;
      },
      10'000);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Exists("stopped"));
}

TEST_F(SupervisorTest, KillsAChildThatDoesNotStop) {
  Supervisor supervisor("/bin/sh");
  supervisor.Add(Shell("deaf", "trap '' TERM; touch $DIR/up; while true; do sleep 0.05; done"));
  const absl::Status status = supervisor.Run(
      [this] {
        if (Exists("up")) kill(getpid(), SIGTERM);
        return Exists("up");
      },
      300);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(SupervisorTest, StartsAChildAgainThatDiesLater) {
  Supervisor supervisor("/bin/sh");
  // The first life ends once it is told that start-up is over; the second asks for the end.
  supervisor.Add(Shell(
      "child", absl::StrCat("if [ -e $DIR/once ]; then touch $DIR/twice; kill -TERM ", getpid(),
                            "; sleep 60; fi; touch $DIR/once; "
                            "while [ ! -e $DIR/ready ]; do sleep 0.05; done; exit 1")));
  const absl::Status status = supervisor.Run(
      [this] {
        if (!Exists("once")) return false;
        std::ofstream(directory_ / "ready") << "yes";
        return true;
      },
      2000);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Exists("twice"));
}

}  // namespace
}  // namespace baton

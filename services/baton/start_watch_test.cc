#include "services/baton/start_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/telemetry/http_endpoint.h"
#include "services/baton/child_pipes.h"
#include "services/baton/start_probes.h"

namespace baton {
namespace {

using testing::ElementsAre;

class StartProgressTest : public testing::Test {
 protected:
  std::string Note() { return progress_.Note(states_); }

  std::map<std::string, StartState> states_;
  StartProgress progress_{
      {"cluster starting",
       "registered",
       {{"chain-0", "ranks", {"a", "b", "c", "d"}}, {"decode", "services", {"e"}}}}};
};

TEST_F(StartProgressTest, SaysNothingUntilSomebodyIsThere) {
  EXPECT_EQ(Note(), "");
  EXPECT_EQ(Note(), "");
}

TEST_F(StartProgressTest, CountsEachGroupAndSaysEveryChangeOnce) {
  states_["b"] = StartState::kHere;
  EXPECT_EQ(Note(),
            "cluster starting: chain-0: 0 of 4 ranks ready, 1 registered; "
            "decode: 0 of 1 services ready");
  EXPECT_EQ(Note(), "");
  states_["a"] = StartState::kReady;
  states_["e"] = StartState::kReady;
  EXPECT_EQ(Note(),
            "cluster starting: chain-0: 1 of 4 ranks ready, 2 registered; "
            "decode: 1 of 1 services ready");
  for (const char* name : {"a", "b", "c", "d"}) states_[name] = StartState::kReady;
  EXPECT_EQ(Note(), "cluster starting: chain-0: 4 of 4 ranks ready; decode: 1 of 1 services ready");
  EXPECT_EQ(Note(), "");
}

// Another rank in the place of one that went is no news; that they are fewer is.
TEST_F(StartProgressTest, SaysWhenSomebodyIsGone) {
  states_["a"] = StartState::kReady;
  ASSERT_NE(Note(), "");
  states_["a"] = StartState::kAbsent;
  EXPECT_EQ(Note(), "cluster starting: chain-0: 0 of 4 ranks ready; decode: 0 of 1 services ready");
  states_["d"] = StartState::kReady;
  EXPECT_EQ(Note(), "cluster starting: chain-0: 1 of 4 ranks ready; decode: 0 of 1 services ready");
}

// A node, and the probes of its two workers, which are what the test says.
class StartWatchTest : public testing::Test {
 protected:
  enum Stage { kLoading, kWaiting, kReady };

  struct Worker {
    std::atomic<Stage> stage{kLoading};
    std::unique_ptr<HttpEndpoint> endpoint;
  };

  void SetUp() override {
    for (Worker& worker : workers_) {
      HttpEndpointCallbacks callbacks;
      callbacks.metrics = [] { return std::string(); };
      callbacks.liveness = [] { return absl::OkStatus(); };
      callbacks.readiness = [&worker] {
        const Stage stage = worker.stage;
        if (stage == kReady) return absl::OkStatus();
        return absl::UnavailableError(stage == kLoading ? kLoadingText : "not wired to its peers");
      };
      auto endpoint = HttpEndpoint::Start({}, std::move(callbacks));
      ASSERT_TRUE(endpoint.ok()) << endpoint.status();
      worker.endpoint = *std::move(endpoint);
    }
    LaunchPlan plan;
    plan.local_host = "127.0.0.1";
    plan.metrics_ports = {{"a", workers_[0].endpoint->port()}, {"b", workers_[1].endpoint->port()}};
    watch_ = std::make_unique<StartWatch>(
        StartSubject{"node starting", "loaded", {{"c", "ranks", {"a", "b"}}}}, LookAtNode(plan),
        [](const StartView&) { return "node ready"; });
    asked_ = watch_->ForSupervisor();
    for (const char* name : {"a", "b"}) asked_.on_incarnation(name, 1);
  }
  // The watch uses the workers' ports.
  void TearDown() override { watch_.reset(); }

  // Keeps the lines for TakeLines.
  StartNews News() {
    StartNews news = asked_.news();
    lines_.insert(lines_.end(), news.lines.begin(), news.lines.end());
    return news;
  }
  bool Ready() {
    News();
    return std::find(lines_.begin(), lines_.end(), "node ready") != lines_.end();
  }
  std::vector<std::string> TakeLines() {
    News();
    return std::exchange(lines_, {});
  }
  static bool Becomes(const std::function<bool()>& condition) {
    for (int i = 0; i < 500 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return condition();
  }
  bool WaitsFor(const std::string& text) {
    return Becomes([&] { return News().waiting_for == text; });
  }

  Worker workers_[2];
  std::unique_ptr<StartWatch> watch_;
  SupervisorWatch asked_;
  std::vector<std::string> lines_;
};

TEST_F(StartWatchTest, TellsLoadedFromReady) {
  EXPECT_TRUE(WaitsFor("a has not loaded, b has not loaded"));
  workers_[0].stage = kWaiting;
  EXPECT_TRUE(WaitsFor("a: not wired to its peers, b has not loaded"));
  EXPECT_FALSE(News().started);
  EXPECT_THAT(TakeLines(), ElementsAre("node starting: c: 0 of 2 ranks ready, 1 loaded"));
  workers_[1].stage = kReady;
  EXPECT_TRUE(Becomes([this] { return News().started; }));
  EXPECT_FALSE(Ready());
  EXPECT_TRUE(WaitsFor("a: not wired to its peers"));
  EXPECT_THAT(TakeLines(), ElementsAre("node starting: c: 1 of 2 ranks ready, 2 loaded"));
  workers_[0].stage = kReady;
  EXPECT_TRUE(Becomes([this] { return Ready(); }));
  EXPECT_EQ(News().waiting_for, "");
  EXPECT_THAT(TakeLines(), ElementsAre("node starting: c: 2 of 2 ranks ready", "node ready"));
  EXPECT_THAT(TakeLines(), ElementsAre());
}

// Another process may have a worker's port, and answer anything.
TEST_F(StartWatchTest, OnlyThoseWhoSaidThatTheyListenAreAsked) {
  asked_.on_incarnation("a", 0);
  for (Worker& worker : workers_) worker.stage = kReady;
  EXPECT_TRUE(WaitsFor("a has not loaded"));
  EXPECT_FALSE(Ready());
  asked_.on_incarnation("a", 2);
  EXPECT_TRUE(Becomes([this] { return Ready(); }));
}

// One that dies while the others of the chain are awaited is missing again, and the node has
// started all the same.
TEST_F(StartWatchTest, OneThatIsGoneIsMissing) {
  workers_[0].stage = kWaiting;
  workers_[1].stage = kWaiting;
  EXPECT_TRUE(Becomes([this] { return News().started; }));
  workers_[1].endpoint.reset();
  EXPECT_TRUE(WaitsFor("a: not wired to its peers, b has not loaded"));
  EXPECT_TRUE(News().started);
  EXPECT_FALSE(Ready());
}

}  // namespace
}  // namespace baton

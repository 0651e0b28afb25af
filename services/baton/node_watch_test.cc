#include "services/baton/node_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "common/telemetry/http_endpoint.h"
#include "services/baton/start_report.h"

namespace baton {
namespace {

using testing::ElementsAre;

// The probes of two workers, which are what the test says.
class NodeWatchTest : public testing::Test {
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
    watch_ = std::make_unique<NodeWatch>(
        NodeWatchOptions{"127.0.0.1",
                         {{"a", workers_[0].endpoint->port()}, {"b", workers_[1].endpoint->port()}},
                         {"c", "ranks", {"a", "b"}}});
    for (const char* name : {"a", "b"}) watch_->OnIncarnation(name, 1);
  }
  // The watch uses the workers' ports.
  void TearDown() override { watch_.reset(); }

  static bool Becomes(const std::function<bool()>& condition) {
    for (int i = 0; i < 500 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return condition();
  }
  bool WaitsFor(const std::string& text) {
    return Becomes([&] { return watch_->waiting_for() == text; });
  }

  Worker workers_[2];
  std::unique_ptr<NodeWatch> watch_;
};

TEST_F(NodeWatchTest, TellsLoadedFromReady) {
  EXPECT_TRUE(WaitsFor("a has not loaded, b has not loaded"));
  workers_[0].stage = kWaiting;
  EXPECT_TRUE(WaitsFor("a: not wired to its peers, b has not loaded"));
  EXPECT_FALSE(watch_->started());
  EXPECT_THAT(watch_->TakeNews(), ElementsAre("node starting: c: 0 of 2 ranks ready, 1 loaded"));
  workers_[1].stage = kReady;
  EXPECT_TRUE(Becomes([this] { return watch_->started(); }));
  EXPECT_FALSE(watch_->ready());
  EXPECT_TRUE(WaitsFor("a: not wired to its peers"));
  EXPECT_THAT(watch_->TakeNews(), ElementsAre("node starting: c: 1 of 2 ranks ready, 2 loaded"));
  workers_[0].stage = kReady;
  EXPECT_TRUE(Becomes([this] { return watch_->ready(); }));
  EXPECT_EQ(watch_->waiting_for(), "");
  EXPECT_THAT(watch_->TakeNews(), ElementsAre("node starting: c: 2 of 2 ranks ready"));
  EXPECT_THAT(watch_->TakeNews(), ElementsAre());
}

// Another process may have a worker's port, and answer anything.
TEST_F(NodeWatchTest, OnlyThoseWhoSaidThatTheyListenAreAsked) {
  watch_->OnIncarnation("a", 0);
  for (Worker& worker : workers_) worker.stage = kReady;
  EXPECT_TRUE(WaitsFor("a has not loaded"));
  EXPECT_FALSE(watch_->ready());
  watch_->OnIncarnation("a", 2);
  EXPECT_TRUE(Becomes([this] { return watch_->ready(); }));
}

// One that dies while the others of the chain are awaited is missing again, and the node has
// started all the same.
TEST_F(NodeWatchTest, OneThatIsGoneIsMissing) {
  workers_[0].stage = kWaiting;
  workers_[1].stage = kWaiting;
  EXPECT_TRUE(Becomes([this] { return watch_->started(); }));
  workers_[1].endpoint.reset();
  EXPECT_TRUE(WaitsFor("a: not wired to its peers, b has not loaded"));
  EXPECT_TRUE(watch_->started());
  EXPECT_FALSE(watch_->ready());
}

}  // namespace
}  // namespace baton

#include "services/prefill/chain/chain_wiring.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/rpc/server.h"

namespace baton::prefill {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

worker::PeerWorker StageOne(uint64_t incarnation) {
  worker::PeerWorker worker;
  worker.instance = {"prefill-1", incarnation};
  worker.role = Role::kPrefill;
  worker.grpc_address = "127.0.0.1:1";  // Nobody answers there.
  worker.layers = {2, 4};
  worker.chain_id = "chain-0";
  worker.pp_rank = 1;
  worker.pp_size = 2;
  return worker;
}

// Its clock is the test's; the loop is never started, so nothing happens in between.
class ChainWiringTest : public testing::Test {
 protected:
  ChainWiringTest() : wiring_(MakeOptions(), MakeCallbacks()) {}

  ChainWiring::Options MakeOptions() {
    ChainWiring::Options options;
    options.place = {"chain-0", 0, 2, 4, {{"prefill-0", 1}, {0, 2}}};
    options.page_count = 8;
    options.max_plan_tokens = 64;
    options.activation_credits = 2;
    options.loop = std::make_shared<EventLoop>("baton-test");
    return options;
  }
  ChainWiring::Callbacks MakeCallbacks() {
    ChainWiring::Callbacks callbacks;
    callbacks.begin_own = [this](const Hello& hello) {
      begun_.push_back(hello.stages[1].instance.incarnation);
      return absl::OkStatus();
    };
    callbacks.on_up = [](uint64_t, int, int) {};
    callbacks.on_down = [](const absl::Status&) {};
    callbacks.on_plan_done = [](int, uint64_t, const PlanDone&) {};
    callbacks.on_request_closed = [](int, uint64_t, const RequestClosed&) {};
    return callbacks;
  }
  // Wires and fails until the wait between two attempts grows no more; returns it.
  int64_t FailOften() {
    int64_t wait_us = 0;
    for (int i = 0; i < 10; ++i) {
      now_us_ += wait_us;
      wiring_.Wake(now_us_);
      wiring_.Break(absl::UnavailableError("a test"), now_us_);
      wait_us = wiring_.Wake(now_us_) - now_us_;
    }
    return wait_us;
  }

  // gRPC's library must not end with the links' channels, on its own thread
  // (common/rpc/call_tracker.h): in a process it is the server that outlives them.
  const rpc::RunningServer library_ = rpc::StartServer({.host = "127.0.0.1"}, {}).value();
  std::vector<uint64_t> begun_;  // Incarnations of stage 1 that epochs were begun with.
  int64_t now_us_ = kSecondUs;
  ChainWiring wiring_;
};

TEST_F(ChainWiringTest, WaitsLongerAfterEachFailureWithTheSameStages) {
  wiring_.OnView({StageOne(1)}, now_us_);
  EXPECT_EQ(FailOften(), 2 * kSecondUs);
  const size_t attempts = begun_.size();
  wiring_.Wake(now_us_ + kSecondUs);
  EXPECT_EQ(begun_.size(), attempts);
  // Gone and back as it was: it is the one that has failed.
  wiring_.OnView({}, now_us_ + kSecondUs);
  wiring_.OnView({StageOne(1)}, now_us_ + kSecondUs);
  wiring_.Wake(now_us_ + kSecondUs);
  EXPECT_EQ(begun_.size(), attempts);
  wiring_.Wake(now_us_ + 2 * kSecondUs);
  EXPECT_EQ(begun_.size(), attempts + 1);
}

TEST_F(ChainWiringTest, AStageThatWasStartedAgainIsWiredAtOnce) {
  wiring_.OnView({StageOne(1)}, now_us_);
  EXPECT_EQ(FailOften(), 2 * kSecondUs);
  wiring_.OnView({}, now_us_);
  wiring_.OnView({StageOne(2)}, now_us_);
  wiring_.Wake(now_us_);
  EXPECT_EQ(begun_.back(), 2u);
  wiring_.Break(absl::UnavailableError("a test"), now_us_);
  EXPECT_LT(wiring_.Wake(now_us_) - now_us_, kSecondUs) << "its first failure counts from there";
}

}  // namespace
}  // namespace baton::prefill

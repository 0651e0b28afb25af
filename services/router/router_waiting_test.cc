// Requests that wait for a pair, and the leases that say when one is there, in a whole router.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "services/router/testing/lease_client.h"
#include "services/router/testing/router_service_fixture.h"
#include "services/router/worker_convert.h"

namespace baton::router {
namespace {

class WaitingServiceTest : public RouterServiceTest {
 protected:
  WaitingServiceTest() : RouterServiceTest(3'600'000) {}

  // The loop publishes what it knows within 50 ms.
  void AwaitGauge(const std::string& name, int value) {
    const std::string end = "} " + std::to_string(value) + "\n";
    for (;;) {
      const std::string text = router_->gateway().ScrapeMetrics();
      const size_t at = text.find("\n" + name + "{");
      if (at != std::string::npos && text.find(end, at) == text.find("} ", at)) return;
      std::this_thread::yield();
    }
  }
  void AwaitWaiting(int count) { AwaitGauge("baton_requests_waiting", count); }
};

TEST_F(WaitingServiceTest, ARequestWaitsForThePairThatIsComing) {
  Add(TestStage("c0", 0, 1), {});
  Add(TestDecode("d0"), {.tokens = hello_});
  for (const auto& worker : workers_) ASSERT_TRUE(worker->Register(*cluster_).ok());
  grpc::ClientContext context;
  auto reader = inference_->Generate(&context, Request());
  AwaitWaiting(1);
  EXPECT_TRUE(router_->gateway().readiness().ready);
  for (int round = 0; round < 2; ++round) {
    for (const auto& worker : workers_) ASSERT_TRUE(worker->Beat().ok());
  }
  const Answer answer = ReadAll(*reader);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text, "hello world");
  EXPECT_EQ(answer.finished.attempts(), 1);
}

TEST_F(WaitingServiceTest, ABrokenLeaseTakesTheWorkerOutUntilItIsHeard) {
  Add(TestStage("c0", 0, 1), {});
  Add(TestDecode("d0"), {.tokens = hello_});
  for (const auto& worker : workers_) ASSERT_TRUE(worker->Register(*cluster_).ok());
  for (int round = 0; round < 2; ++round) {
    for (const auto& worker : workers_) ASSERT_TRUE(worker->Beat().ok());
  }
  AwaitGauge("baton_ready_pairs", 1);
  workers_[1]->BreakLease();
  // The decode does not answer, for all that the router knows: a request waits for it.
  AwaitGauge("baton_ready_pairs", 0);
  grpc::ClientContext call;
  auto reader = inference_->Generate(&call, Request());
  AwaitWaiting(1);
  EXPECT_TRUE(router_->gateway().readiness().ready);
  ASSERT_TRUE(workers_[1]->Register(*cluster_).ok());
  ASSERT_TRUE(workers_[1]->Beat().ok());
  EXPECT_EQ(ReadAll(*reader).text, "hello world");
}

TEST_F(WaitingServiceTest, AMemberIsAskedForAHeartbeatAndTheEndEndsLeases) {
  LeaseClient lease;
  v1::RegisterRequest registration;
  *registration.mutable_worker() = ToProto(TestDecode("d0"));
  ASSERT_TRUE(lease.Register(*cluster_, registration).ok());
  v1::HeartbeatResponse answer;
  ASSERT_TRUE(lease.Beat({}, &answer).ok());
  EXPECT_EQ(answer.workers_size(), 1);
  Add(TestDecode("d1"), {});
  ASSERT_TRUE(workers_[0]->Register(*cluster_).ok());
  v1::LeaseResponse wanted;
  ASSERT_TRUE(lease.Read(&wanted));
  EXPECT_EQ(wanted.said_case(), v1::LeaseResponse::SAID_NOT_SET);
  router_->Stop(0);
  EXPECT_EQ(lease.End().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace baton::router

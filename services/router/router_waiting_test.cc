// Requests that wait for a pair, and the watches that say when one is there, in a whole router.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "services/router/testing/router_service_fixture.h"

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
  static void AwaitOpen(grpc::ClientReader<v1::WatchNotice>& watch) {
    v1::WatchNotice notice;
    ASSERT_TRUE(watch.Read(&notice));
  }
  static v1::WatchRequest WatchOf(const InstanceRef& instance) {
    v1::WatchRequest request;
    request.mutable_instance()->set_instance_id(instance.id);
    request.mutable_instance()->set_incarnation(instance.incarnation);
    return request;
  }
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
    for (const auto& worker : workers_) ASSERT_TRUE(worker->Beat(*cluster_).ok());
  }
  const Answer answer = ReadAll(*reader);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text, "hello world");
  EXPECT_EQ(answer.finished.attempts(), 1);
}

TEST_F(WaitingServiceTest, AWatchTellsOfMembersAndItsBreakTakesTheWorkerOut) {
  Add(TestStage("c0", 0, 1), {});
  Add(TestDecode("d0"), {.tokens = hello_});
  for (const auto& worker : workers_) ASSERT_TRUE(worker->Register(*cluster_).ok());
  auto context = std::make_unique<grpc::ClientContext>();
  auto watch = cluster_->Watch(context.get(), WatchOf({"d0", 1}));
  AwaitOpen(*watch);  // It has heard of no members yet.
  for (int round = 0; round < 2; ++round) {
    for (const auto& worker : workers_) ASSERT_TRUE(worker->Beat(*cluster_).ok());
  }
  AwaitGauge("baton_ready_pairs", 1);
  Add(TestDecode("d1"), {});
  ASSERT_TRUE(workers_[2]->Register(*cluster_).ok());
  AwaitOpen(*watch);
  context->TryCancel();
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // The decode does not answer, for all that the router knows: a request waits for it.
  AwaitGauge("baton_ready_pairs", 0);
  grpc::ClientContext call;
  auto reader = inference_->Generate(&call, Request());
  AwaitWaiting(1);
  EXPECT_TRUE(router_->gateway().readiness().ready);
  for (const size_t i : {0, 1}) ASSERT_TRUE(workers_[i]->Beat(*cluster_).ok());
  EXPECT_EQ(ReadAll(*reader).text, "hello world");
}

TEST_F(WaitingServiceTest, StrangersCannotWatchAndTheEndEndsWatches) {
  grpc::ClientContext strange;
  auto refused = cluster_->Watch(&strange, WatchOf({"d9", 1}));
  v1::WatchNotice notice;
  EXPECT_FALSE(refused->Read(&notice));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext nameless;
  EXPECT_EQ(cluster_->Watch(&nameless, {})->Finish().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  Add(TestDecode("d0"), {});
  ASSERT_TRUE(workers_[0]->Register(*cluster_).ok());
  grpc::ClientContext context;
  auto watch = cluster_->Watch(&context, WatchOf({"d0", 1}));
  AwaitOpen(*watch);
  router_->Stop(0);
  EXPECT_FALSE(watch->Read(&notice));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace baton::router

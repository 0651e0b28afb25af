// What workers ask a whole router about one another: their own members, and where others are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"
#include "services/router/testing/lease_client.h"
#include "services/router/testing/router_service_fixture.h"
#include "services/router/worker_convert.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ClusterCallsTest : public RouterServiceTest {
 protected:
  absl::Status Find(const InstanceRef& instance) {
    v1::FindRequest request;
    *request.mutable_instance() = rpc::ToProto(instance);
    return Find(request);
  }
  absl::Status Find(const v1::FindRequest& request) {
    grpc::ClientContext context;
    found_.Clear();
    return rpc::FromGrpc(cluster_->Find(&context, request, &found_));
  }
  void Register(const WorkerInfo& worker) {
    v1::RegisterRequest request;
    *request.mutable_worker() = ToProto(worker);
    v1::RegisterResponse response;
    ASSERT_TRUE(leases_[worker.instance].Register(*cluster_, request, &response).ok());
    router_incarnation_ = response.router_incarnation();
  }
  absl::Status Beat(const InstanceRef& instance, const std::vector<uint64_t>& linked = {}) {
    v1::HeartbeatRequest request;
    request.set_ready(true);
    request.mutable_linked()->Add(linked.begin(), linked.end());
    return Beat(instance, request);
  }
  absl::Status Beat(const InstanceRef& instance, const v1::HeartbeatRequest& request) {
    beat_.Clear();
    return rpc::FromGrpc(leases_.at(instance).Beat(request, &beat_));
  }
  std::vector<std::string> Told() const {
    std::vector<std::string> names;
    for (const v1::WorkerInfo& worker : beat_.workers()) {
      names.push_back(worker.instance().instance_id());
    }
    return names;
  }
  int ReadyPairs() {
    const std::string text = router_->gateway().ScrapeMetrics();
    const size_t at = text.find("\nbaton_ready_pairs{");
    return at == std::string::npos ? -1 : std::stoi(text.substr(text.find("} ", at) + 2));
  }

  std::map<InstanceRef, LeaseClient> leases_;
  v1::FindResponse found_;
  v1::HeartbeatResponse beat_;
  uint64_t router_incarnation_ = 0;
};

TEST_F(ClusterCallsTest, AMemberIsFoundWithItsAddresses) {
  Register(TestStage("c0", 0, 1));
  WorkerInfo decode = TestDecode("d0");
  decode.instance.incarnation = 0xfeed;
  Register(decode);
  ASSERT_EQ(Find(decode.instance), absl::OkStatus());
  const absl::StatusOr<WorkerInfo> found = WorkerFromProto(found_.worker());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, decode);
}

TEST_F(ClusterCallsTest, WhoIsNotHereIsNotFound) {
  Register(TestDecode("d0"));
  const absl::Status another = Find({"d0", 0x2f});
  EXPECT_TRUE(absl::IsNotFound(another)) << another;
  EXPECT_THAT(std::string(another.message()), HasSubstr("d0 incarnation 2f holds no lease here"));
  EXPECT_FALSE(found_.has_worker());
  EXPECT_TRUE(absl::IsNotFound(Find({"d9", 1})));
}

TEST_F(ClusterCallsTest, WhomNobodyCouldBeIsRefusedByField) {
  EXPECT_EQ(FieldOf(Find(v1::FindRequest())), "instance.instance_id");
  v1::FindRequest no_life;
  no_life.mutable_instance()->set_instance_id("d0");
  EXPECT_EQ(FieldOf(Find(no_life)), "instance.incarnation");
}

TEST_F(ClusterCallsTest, NobodyIsFoundAfterTheEnd) {
  Register(TestDecode("d0"));
  router_->Stop(0);
  EXPECT_TRUE(absl::IsUnavailable(Find({"d0", 1})));
}

TEST_F(ClusterCallsTest, AHeartbeatBringsTheWorkersWhenTheyChanged) {
  Register(TestStage("c0", 0, 1));
  Register(TestDecodeRank(0));
  ASSERT_EQ(Beat({"d0-0", 1}), absl::OkStatus());
  EXPECT_THAT(Told(), ElementsAre("c0-0", "d0-0"));
  Register(TestDecodeRank(1));
  Register(TestDecode("d9"));
  ASSERT_EQ(Beat({"d0-0", 1}), absl::OkStatus());
  EXPECT_THAT(Told(), ElementsAre("c0-0", "d0-0", "d0-1", "d9"));
  ASSERT_EQ(Beat({"d0-0", 1}), absl::OkStatus());
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(ClusterCallsTest, AServiceServesOnceItLinksItsRanks) {
  WorkerInfo rank1 = TestDecodeRank(1);
  rank1.instance.incarnation = 2;
  for (const WorkerInfo& worker : {TestStage("c0", 0, 1), TestDecodeRank(0), rank1}) {
    Register(worker);
    ASSERT_EQ(Beat(worker.instance), absl::OkStatus());
  }
  ASSERT_EQ(Beat({"d0-0", 1}, {2, 1}), absl::OkStatus());
  while (ReadyPairs() != 1) continue;  // Published a moment later.
  ASSERT_EQ(Beat({"d0-0", 1}, {1}), absl::OkStatus());
  while (ReadyPairs() != 0) continue;
}

TEST_F(ClusterCallsTest, PromptsOfOtherRoutersAreBounded) {
  const auto beat = [this](int prompts, int keys) {
    Register(TestDecodeRank(0));  // A heartbeat that is refused ends the call.
    v1::HeartbeatRequest request;
    for (int i = 0; i < prompts; ++i) {
      request.add_taken_prompts()->mutable_prefix_keys()->Resize(keys, 7);
    }
    return FieldOf(Beat({"d0-0", 1}, request));
  };
  EXPECT_EQ(beat(16, 256), std::nullopt);
  EXPECT_EQ(beat(17, 256), "taken_prompts");
  EXPECT_EQ(beat(4097, 0), "taken_prompts");
}

TEST_F(ClusterCallsTest, ACallThatSaysSomethingOutOfTurnIsEnded) {
  const auto end_of = [this](const std::vector<v1::LeaseRequest>& messages) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    const auto stream = cluster_->Lease(&context);
    for (const v1::LeaseRequest& message : messages) stream->Write(message);
    v1::LeaseResponse response;
    while (stream->Read(&response)) continue;
    return rpc::FromGrpc(stream->Finish());
  };
  v1::LeaseRequest registration;
  *registration.mutable_registration()->mutable_worker() = ToProto(TestDecode("d0"));
  v1::LeaseRequest heartbeat;
  heartbeat.mutable_heartbeat()->set_ready(true);
  const v1::LeaseRequest nothing;
  const std::vector<std::vector<v1::LeaseRequest>> wrong = {
      {nothing}, {heartbeat}, {registration, registration}, {registration, nothing}};
  for (const auto& messages : wrong) {
    const absl::Status end = end_of(messages);
    EXPECT_TRUE(absl::IsInvalidArgument(end)) << end;
  }
}

// So a worker has one message in the router's mailbox at most.
TEST_F(ClusterCallsTest, AHeartbeatWaitsForTheLastOnesAnswer) {
  Register(TestDecode("d0"));
  LeaseClient& lease = leases_.at({"d0", 1});
  grpc::ClientContext drains;
  v1::DrainRequest drain;
  drain.set_instance_id("d0");
  v1::DrainResponse drained;
  ASSERT_TRUE(cluster_->Drain(&drains, drain, &drained).ok());
  ASSERT_EQ(ArmFailpoints("router.ask_drain=delay:100"), absl::OkStatus());
  for (int i = 0; i < 2; ++i) lease.Send({});
  EXPECT_THAT(lease.End().error_message(), HasSubstr("before the last one was answered"));
  EXPECT_EQ(ArmFailpoints(""), absl::OkStatus());
}

TEST_F(ClusterCallsTest, AWorkerIsHeldByOneCall) {
  Register(TestDecode("d0"));
  v1::RegisterRequest request;
  *request.mutable_worker() = ToProto(TestDecode("d0"));
  request.add_held_by(router_incarnation_);
  LeaseClient other;
  EXPECT_EQ(other.Register(*cluster_, request).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  request.clear_held_by();
  EXPECT_TRUE(other.Register(*cluster_, request).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Beat({"d0", 1})));
}

TEST_F(ClusterCallsTest, LinksAreBounded) {
  Register(TestDecodeRank(0));
  EXPECT_EQ(Beat({"d0-0", 1}, std::vector<uint64_t>(4096, 7)), absl::OkStatus());
  EXPECT_EQ(FieldOf(Beat({"d0-0", 1}, std::vector<uint64_t>(4097, 7))), "linked");
}

}  // namespace
}  // namespace baton::router

// What workers ask a whole router about one another: their own members, and where others are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"
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
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::RegisterRequest request;
    *request.mutable_worker() = ToProto(worker);
    v1::RegisterResponse response;
    ASSERT_TRUE(cluster_->Register(&context, request, &response).ok());
    router_incarnation_ = response.router_incarnation();
  }
  absl::Status Beat(const InstanceRef& instance, uint64_t view_version,
                    const std::vector<uint64_t>& linked = {}) {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    *request.mutable_instance() = rpc::ToProto(instance);
    request.set_view_version(view_version);
    request.set_router_incarnation(router_incarnation_);
    request.set_ready(true);
    request.mutable_linked()->Add(linked.begin(), linked.end());
    beat_.Clear();
    return rpc::FromGrpc(cluster_->Heartbeat(&context, request, &beat_));
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
  ASSERT_EQ(Beat({"d0-0", 1}, 0), absl::OkStatus());
  EXPECT_THAT(Told(), ElementsAre("c0-0", "d0-0"));
  const uint64_t alone = beat_.view_version();
  Register(TestDecodeRank(1));
  Register(TestDecode("d9"));
  ASSERT_EQ(Beat({"d0-0", 1}, alone), absl::OkStatus());
  EXPECT_THAT(Told(), ElementsAre("c0-0", "d0-0", "d0-1", "d9"));
  ASSERT_EQ(Beat({"d0-0", 1}, beat_.view_version()), absl::OkStatus());
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(ClusterCallsTest, AServiceServesOnceItLinksItsRanks) {
  WorkerInfo rank1 = TestDecodeRank(1);
  rank1.instance.incarnation = 2;
  for (const WorkerInfo& worker : {TestStage("c0", 0, 1), TestDecodeRank(0), rank1}) {
    Register(worker);
    ASSERT_EQ(Beat(worker.instance, 0), absl::OkStatus());
  }
  ASSERT_EQ(Beat({"d0-0", 1}, 0, {2, 1}), absl::OkStatus());
  while (ReadyPairs() != 1) continue;  // Published a moment later.
  ASSERT_EQ(Beat({"d0-0", 1}, 0, {1}), absl::OkStatus());
  while (ReadyPairs() != 0) continue;
}

TEST_F(ClusterCallsTest, PromptsOfOtherRoutersAreBounded) {
  Register(TestDecodeRank(0));
  const auto beat = [this](int prompts, int keys) {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    *request.mutable_instance() = rpc::ToProto(InstanceRef{"d0-0", 1});
    request.set_router_incarnation(router_incarnation_);
    for (int i = 0; i < prompts; ++i) {
      request.add_taken_prompts()->mutable_prefix_keys()->Resize(keys, 7);
    }
    return FieldOf(rpc::FromGrpc(cluster_->Heartbeat(&context, request, &beat_)));
  };
  EXPECT_EQ(beat(16, 256), std::nullopt);
  EXPECT_EQ(beat(17, 256), "taken_prompts");
  EXPECT_EQ(beat(4097, 0), "taken_prompts");
}

TEST_F(ClusterCallsTest, LinksAreBounded) {
  Register(TestDecodeRank(0));
  EXPECT_EQ(Beat({"d0-0", 1}, 0, std::vector<uint64_t>(4096, 7)), absl::OkStatus());
  EXPECT_EQ(FieldOf(Beat({"d0-0", 1}, 0, std::vector<uint64_t>(4097, 7))), "linked");
}

}  // namespace
}  // namespace baton::router

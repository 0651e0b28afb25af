// What a worker may say of itself, to the last value, and who fits beside whom in a chain.
#include "services/router/core/fit.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

using Apply = std::function<void(WorkerInfo&)>;

WorkerInfo Changed(WorkerInfo worker, const Apply& apply) {
  apply(worker);
  return worker;
}

TEST(WellFormedTest, TheSmallestWorkerThatCanServeIsTaken) {
  WorkerInfo worker = TestDecode("d0");
  worker.fingerprint.kv_layout = {1, 1, 1, 1, 1};
  worker.layers = {0, 1};
  worker.page_count = 1;
  worker.max_running_requests = 1;
  worker.max_context_tokens = 1;
  EXPECT_EQ(CheckWellFormed(worker), absl::OkStatus());
  worker.max_running_requests = 0;
  EXPECT_EQ(FieldOf(CheckWellFormed(worker)), "max_running_requests");
}

TEST(WellFormedTest, ThereAreBoundsForWhatAProcessMayClaim) {
  const auto layers = [](int count) {
    WorkerInfo worker = TestDecode("d0");
    worker.fingerprint.kv_layout.layers = count;
    worker.layers = {0, count};
    return FieldOf(CheckWellFormed(worker));
  };
  EXPECT_EQ(layers(4096), std::nullopt);
  EXPECT_EQ(layers(4097), "fingerprint.kv_layout.layers");
  const auto stages = [](int count) {
    WorkerInfo worker = TestStage("c0", 0, 2);
    worker.pp_size = count;
    return FieldOf(CheckWellFormed(worker));
  };
  EXPECT_EQ(stages(64), std::nullopt);
  EXPECT_EQ(stages(65), "pp_size");
  WorkerInfo many = TestDecodeRank(63, kMaxTensorRanks);
  EXPECT_EQ(CheckWellFormed(many), absl::OkStatus());
}

TEST(WellFormedTest, OneVersionOfTheProtocolIsARange) {
  WorkerInfo worker = TestDecode("d0");
  worker.fingerprint.oldest_protocol_version = worker.fingerprint.protocol_version;
  EXPECT_EQ(CheckWellFormed(worker), absl::OkStatus());
}

TEST(WellFormedTest, StagesAndDecodeServicesHoldTheirShareOfTheLayers) {
  const WorkerInfo first = TestStage("c0", 0, 2);
  const WorkerInfo middle = Changed(TestStage("c0", 1, 2), [](auto& w) { w.pp_size = 3; });
  const WorkerInfo last = TestStage("c0", 1, 2);
  const WorkerInfo decode = TestDecode("d0");
  const std::vector<std::pair<WorkerInfo, LayerRange>> wrong = {
      {first, {1, 2}}, {middle, {2, 2}}, {middle, {2, 5}}, {middle, {-1, 2}},
      {last, {2, 3}},  {decode, {0, 2}}, {decode, {2, 4}},
  };
  for (const auto& [worker, layers] : wrong) {
    WorkerInfo with = worker;
    with.layers = layers;
    EXPECT_EQ(FieldOf(CheckWellFormed(with)), "layers") << layers.begin << " to " << layers.end;
  }
  for (const WorkerInfo& worker : {first, last, decode}) {
    EXPECT_EQ(CheckWellFormed(worker), absl::OkStatus());
  }
  const auto inner = Changed(middle, [](auto& w) { w.layers = {1, 3}; });
  EXPECT_EQ(CheckWellFormed(inner), absl::OkStatus());
}

WorkerInfo Speaking(uint32_t oldest, uint32_t newest) {
  WorkerInfo worker = TestDecode("d0");
  worker.fingerprint.oldest_protocol_version = oldest;
  worker.fingerprint.protocol_version = newest;
  return worker;
}

TEST(ProtocolTest, OneVersionInCommonIsEnough) {
  for (const auto& [oldest, newest] : std::vector<std::pair<uint32_t, uint32_t>>{
           {0, kOldestProtocolVersion}, {kProtocolVersion, kProtocolVersion + 5}}) {
    EXPECT_EQ(CheckProtocol(Speaking(oldest, newest)), absl::OkStatus());
  }
  for (const auto& [oldest, newest] : std::vector<std::pair<uint32_t, uint32_t>>{
           {0, kOldestProtocolVersion - 1}, {kProtocolVersion + 1, kProtocolVersion + 5}}) {
    EXPECT_TRUE(absl::IsOutOfRange(CheckProtocol(Speaking(oldest, newest))));
  }
}

// Stage `rank` of three, with these layers.
WorkerInfo StageOfThree(int rank, LayerRange layers) {
  WorkerInfo worker = TestStage("c0", rank, 3);
  worker.layers = layers;
  return worker;
}

TEST(ChainFitTest, NeighboursLeaveNoGapAndOthersNeed) {
  const WorkerInfo first = StageOfThree(0, {0, 1});
  const WorkerInfo second = StageOfThree(1, {1, 2});
  const WorkerInfo last = StageOfThree(2, {2, 4});
  const WorkerInfo late = StageOfThree(2, {3, 4});
  for (const auto& [a, b] : std::vector<std::pair<WorkerInfo, WorkerInfo>>{
           {first, second}, {second, last}, {first, last}, {first, late}}) {
    EXPECT_EQ(CheckFit(a, b), absl::OkStatus());
    EXPECT_EQ(CheckFit(b, a), absl::OkStatus());
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckFit(second, late))) << "a gap";
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckFit(late, second)));
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckFit(StageOfThree(0, {0, 3}), last)))
      << "they overlap";
}

}  // namespace
}  // namespace baton::router

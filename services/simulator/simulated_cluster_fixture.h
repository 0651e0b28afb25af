// A small simulated cluster whose times are closed forms, for tests.
#ifndef SERVICES_SIMULATOR_SIMULATED_CLUSTER_FIXTURE_H_
#define SERVICES_SIMULATOR_SIMULATED_CLUSTER_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "services/simulator/simulated_cluster.h"

namespace baton::simulator {

inline constexpr TimelineWindow kAll{0, std::numeric_limits<int64_t>::max(), 1 << 20};

// Costs of each layer are whole numbers, so that those of stages are.
inline ClusterShape ShapeOf(const std::vector<int>& stage_layers) {
  ClusterShape shape;
  TimedProfile& profile = shape.profile;
  profile.name = "test";
  for (const int layers : stage_layers) {
    shape.stages.push_back({profile.layers, profile.layers + layers});
    profile.layers += layers;
  }
  shape.decode_stages = {{0, profile.layers}};
  profile.hidden_size = 500;
  profile.kv_heads = 1;
  profile.head_dim = 125;
  profile.context_tokens = 1 << 17;
  profile.stage_overhead_us = 300;
  profile.prefill = {.overhead_us = 100.0 * profile.layers,
                     .prefix_us = 0,
                     .token_us = 1.0 * profile.layers,
                     .attention_us = 0.5 * profile.layers,
                     .floor_tokens = 0};
  profile.decode = {.overhead_us = 5000, .sequence_us = 100, .context_us = 1};
  shape.prefill.pp_size = static_cast<int>(stage_layers.size());
  shape.prefill.planner.chunk_tokens = 256;
  shape.prefill.planner.max_context_tokens = shape.max_context_tokens = profile.context_tokens;
  shape.layout = {profile.layers, 1, 125, 64, 2};
  shape.row_bytes = 1000;
  shape.prefill_pages = shape.decode_pages = 2048;
  shape.max_running_requests = 64;
  shape.max_queued_requests = shape.max_requests = 4096;
  shape.request_timeout_us = 3'600'000'000;
  return shape;
}

inline Workload Asked(const std::vector<WorkloadRequest>& requests) {
  return {requests, 0, "asked"};
}

inline Workload Many(int count, int64_t apart_us) {
  Workload workload = Asked({});
  Random random(3);
  for (int i = 0; i < count; ++i) {
    const int prompt = static_cast<int>(random.Between(1, 3000));
    const int output = static_cast<int>(random.Between(1, 20));
    workload.requests.push_back({i * apart_us, prompt, output});
  }
  return workload;
}

// Runs, and lets the cluster come to rest.
inline RunRecord RunIt(const ClusterShape& shape, const Workload& workload) {
  SimulatedCluster cluster(shape, workload, kAll);
  const absl::StatusOr<RunRecord> record = cluster.Run();
  EXPECT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(cluster.Settle(), absl::OkStatus());
  return *record;
}

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_SIMULATED_CLUSTER_FIXTURE_H_

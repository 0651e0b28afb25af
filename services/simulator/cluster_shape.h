// The simulated cluster as plain values: the options of its processes.
#ifndef SERVICES_SIMULATOR_CLUSTER_SHAPE_H_
#define SERVICES_SIMULATOR_CLUSTER_SHAPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chunking/cost_fit.h"
#include "common/engine/timed/timed_profile.h"
#include "common/types/kv_layout.h"
#include "proto/baton/v1/config.pb.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/prefill_options.h"
#include "services/router/core/router_core.h"

namespace baton::simulator {

struct ClusterShape {
  TimedProfile profile;
  std::vector<LayerRange> stages;  // The same in every chain.
  int chains = 1;
  int decodes = 1;                        // None where chains decode (prefill.decodes).
  std::vector<LayerRange> decode_stages;  // The same in every decode service.
  prefill::PrefillOptions prefill;
  // The chunk costs that stages start with, from a sweep or a chunk profile; empty if they learn
  // them.
  std::vector<KnownCost> known_costs;
  int prefill_pages = 0;  // In every stage.
  int decode_pages = 0;   // The same.
  KvLayout layout;        // All processes have its page_size.
  int64_t row_bytes = 0;  // One token's activations.
  int max_context_tokens = 0;
  int max_running_requests = 0;  // In a decode service.
  int reserved_decode_tokens = 1 << 24;
  int max_queued_requests = 0;  // In a decode service, and in the router.
  int max_requests = 0;         // In the router.
  int routers = 1;
  router::Policy policy = router::Policy::kCost;
  int64_t request_timeout_us = 0;

  int64_t latency_us = 0;  // Every message's, one way.
  // 0 means no limit.
  int64_t activation_gbps = 0;
  int64_t kv_gbps = 0;
};

// InvalidArgument names the file, line and field, or the option, that is wrong.
absl::StatusOr<ClusterShape> ShapeOf(const v1::Options& options);

// What the planner and the stages of a chain, or of a decode service, are made with.
struct ChainShape {
  prefill::PrefillOptions options;
  prefill::PlannerLimits limits;
  std::vector<LayerRange> stages;
  int page_count = 0;  // In every stage.
  std::vector<KnownCost> known_costs;
  std::vector<InstanceRef> followers;  // A decode service's stage 1 and on.
};

ChainShape ChainShapeOf(const ClusterShape& shape);
ChainShape DecodeShapeOf(const ClusterShape& shape, int decode);
router::RouterLimits RouterLimitsOf(const ClusterShape& shape, int router);

// What a worker registers with.
router::WorkerInfo DescribeStage(const ClusterShape& shape, int chain, int stage);
router::WorkerInfo DescribeDecode(const ClusterShape& shape, int decode, int stage);

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_CLUSTER_SHAPE_H_

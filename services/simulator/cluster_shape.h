// The cluster that is simulated, as plain values: what its processes would be made with.
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
#include "services/decode/core/decode_core.h"
#include "services/prefill/prefill_options.h"
#include "services/router/core/router_core.h"

namespace baton::simulator {

struct ClusterShape {
  TimedProfile profile;
  std::vector<LayerRange> stages;  // Of every chain.
  int chains = 1;
  int decodes = 1;
  prefill::PrefillOptions prefill;
  // What stages believe that chunks cost before the first one, by a sweep or a chunk profile;
  // empty: they learn it all.
  std::vector<KnownCost> known_costs;
  int prefill_pages = 0;  // Of every stage.
  int decode_pages = 0;
  KvLayout layout;        // Its page_size is everybody's.
  int64_t row_bytes = 0;  // Of one token's activations.
  int max_context_tokens = 0;
  int max_running_requests = 0;  // Of a decode service.
  int max_queued_requests = 0;   // Of a decode service, and of the router.
  int max_requests = 0;          // Of the router.
  router::Policy policy = router::Policy::kLeastLoad;
  int64_t request_timeout_us = 0;

  int64_t latency_us = 0;  // One way, of every message.
  // 0: no limit.
  int64_t activation_gbps = 0;
  int64_t kv_gbps = 0;
};

// InvalidArgument names the file, line and field, or the option, that is wrong.
absl::StatusOr<ClusterShape> ShapeOf(const v1::Options& options);

decode::DecodeLimits DecodeLimitsOf(const ClusterShape& shape, const InstanceRef& self);
router::RouterLimits RouterLimitsOf(const ClusterShape& shape);

// What a worker says of itself when it registers.
router::WorkerInfo DescribeStage(const ClusterShape& shape, int chain, int stage);
router::WorkerInfo DescribeDecode(const ClusterShape& shape, int decode);

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_CLUSTER_SHAPE_H_

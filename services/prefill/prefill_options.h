// What a prefill stage is made with, and what follows from it for its chain's planner. Plain
// values: the service and the simulator (services/simulator) are made with the same.
#ifndef SERVICES_PREFILL_PREFILL_OPTIONS_H_
#define SERVICES_PREFILL_PREFILL_OPTIONS_H_

#include <cstdint>
#include <string>

#include "common/chunking/chunk_policy.h"
#include "common/types/instance.h"
#include "proto/baton/v1/config.pb.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/stage.h"

namespace baton::prefill {

struct PrefillOptions {
  Role role = Role::kPrefill;  // kDecode: a chain that is granted KV.
  InstanceRef self;
  std::string chain_id;
  int pp_rank = 0;
  int pp_size = 1;
  TensorRank tensor_rank;  // Within the stage.
  std::string host = "127.0.0.1";
  int grpc_port = 0;  // 0: any free one.
  // What is said of them; the rest of them follows (PlannerLimitsOf). Its chunk_tokens is -1 for
  // whole prompts.
  PlannerLimits planner = {
      .max_open_requests = 16, .max_queued_requests = 4096, .reserved_decode_tokens = 1};
  int async_depth = -1;  // Plans in flight beyond pp_size. -1: plans_in_flight.
  int plans_in_flight = 2;
  int activation_credits = 2;
  int64_t kv_lease_ms = 3000;
};

// What the process's options say of scheduling; the rest is left as it is by default.
PrefillOptions SchedulingOf(const v1::Options& options, int max_context_tokens);
// The same of a decode service.
PrefillOptions SchedulingOfDecode(const v1::Options& options, int max_context_tokens);

// `row_bytes`: of one token's activations.
PlannerLimits PlannerLimitsOf(const PrefillOptions& options, int page_size, int64_t row_bytes);
// For stage `options.pp_rank`.
StageOptions StageOptionsOf(const PrefillOptions& options, int page_size);

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_PREFILL_OPTIONS_H_

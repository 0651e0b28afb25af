// The time constants of one simulated cluster, drawn from its seed: what production takes from its
// configuration or from a core's defaults. A promise that holds only for the defaults holds by
// luck.
//
// They are drawn so that the relations hold which the cores and their documents ask for (a lease
// outlasts several heartbeats, a grace outlasts what the network may take); each field says its
// own. Checks with a bound in time take it from here, never from a number of their own.
#ifndef TESTS_SIM_TIMINGS_H_
#define TESTS_SIM_TIMINGS_H_

#include <cstdint>
#include <string>

#include "common/base/random.h"
#include "services/links/core/hello.h"
#include "services/router/core/learned_limit.h"
#include "services/worker/core/router_membership.h"

namespace baton::sim {

// How long what the transports only delay is under way at most, where nothing is to fail for it.
// A storm's may be later than every patience.
inline constexpr int64_t kLongestSpikeUs = 200'000;      // Any message of a call.
inline constexpr int64_t kLatestBreakUs = 4'000'000;     // Until one end of a call notices.
inline constexpr int64_t kSlowestDnsUs = 3'000'000;      // An answer.
inline constexpr int64_t kSlowestConnectUs = 2'000'000;  // A lookup, or a rank's connection.
inline constexpr int64_t kEndpointAgainUs = 500;         // For an endpoint that is being opened.
// A full window in a storm: far below the silence after which an endpoint is dead.
inline constexpr int64_t kSlowestStormWindowUs = 20'000;

struct Timings {
  // ---- The network ----
  // Latest arrival of a tensor message after its sender got OK.
  int64_t latest_data_us = 2'000'000;
  int64_t window_us = 0;  // What a full window takes where links are slow: in a storm, little.

  // ---- Workers at their routers ----
  worker::MembershipTimes membership;  // A backoff is no longer than a lease.
  int64_t resolve_us = 5'000'000;
  int64_t lease_us = 2'000'000;  // Several heartbeats, and an answer that a spike delays.
  // As long as workers keep their peers (membership.grace_us).
  int64_t settle_us = 5'000'000;
  int64_t drain_ending_us = 1'000'000;
  int64_t asked_drain_us = 4'000'000;

  // ---- Routers ----
  int64_t pairing_timeout_us = 3'000'000;
  int64_t report_us = 200'000;  // How long a complete answer waits for prefill's report.
  int64_t first_probation_us = 100'000;
  int64_t longest_probation_us = 5'000'000;
  router::BackoffRange overload_backoff;

  // ---- Endpoints ----
  int64_t endpoint_silence_us = 3'000'000;  // Longer than a ping and its answer that are late.

  // ---- Chains ----
  links::ChainTimes chain;
  int64_t plan_grace_us = 3'000'000;  // Longer than an activation and a credit that are late.
  // How long a stage's rank waits for another's part of a sum, which is less than the
  // planner waits for the stage; and for the others to connect, which is less than linking may
  // take. 0: there is one rank a stage.
  int64_t sum_timeout_us = 0;
  int64_t group_connect_us = 0;
  void AddGroups() {
    sum_timeout_us = plan_grace_us;
    group_connect_us = chain.begin_limit_us;
  }

  // ---- The hand-off ----
  int64_t stream_lease_us = 3'000'000;
  int64_t writer_lease_us = 3'000'000;  // Longer than data that is late.
  int64_t kv_heartbeat_us = 500'000;    // Several to a writer's lease.
  int64_t lease_tick_us = 250'000;
  int64_t receipt_us = 1'000'000;  // All times that it is asked for: longer than data is late.
  int receipt_asks = 3;

  // When a healed cluster serves again, after the last fault has ended, through everything that
  // lives: the bound of the probes.
  int64_t RecoveryUs() const;

  std::string Summary() const;
};

Timings DrawTimings(Random& random);

}  // namespace baton::sim

#endif  // TESTS_SIM_TIMINGS_H_

#include "tests/sim/timings.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::sim {
namespace {

constexpr int64_t kMs = 1000;
// A message, an event loop's turn or two, an answer: what is at once takes less.
constexpr int64_t kAtOnceUs = 1'000'000;

void DrawMembership(Random& random, Timings& times) {
  worker::MembershipTimes& membership = times.membership;
  membership.heartbeat_us = random.Between(250, 700) * kMs;
  times.lease_us = membership.heartbeat_us * random.Between(3, 6) + 4 * kLongestSpikeUs;
  membership.first_backoff_us = random.Between(20, 100) * kMs;
  membership.longest_backoff_us = random.Between(times.lease_us / 2, times.lease_us);
  // In which an answer comes that spikes delay both ways.
  membership.answer_timeout_us = random.Between(3 * kLongestSpikeUs, times.lease_us / 2);
  // Within it a newly started router learns of every worker.
  const int64_t rejoin_us = 2 * membership.longest_backoff_us +
                            std::max(membership.answer_timeout_us, 2 * membership.heartbeat_us);
  membership.grace_us = random.Between(rejoin_us, rejoin_us + 2'000 * kMs);
  times.settle_us = membership.grace_us;
  times.resolve_us = random.Between(2'000, 6'000) * kMs;
  times.drain_ending_us = random.Between(500, 2'000) * kMs;
  times.asked_drain_us = random.Between(1, 6) * 1'000 * kMs;
}

void DrawChain(Random& random, Timings& times) {
  links::ChainTimes& chain = times.chain;
  chain.silence_us = random.Between(1'500, 5'000) * kMs;
  chain.ping_us = chain.silence_us / random.Between(4, 8);
  // Endpoints may be slow to stand.
  chain.linking_limit_us = random.Between(5'000, 12'000) * kMs;
  chain.begin_limit_us = chain.linking_limit_us * 4 / 5;
  chain.begin_again_us = random.Between(10, 60) * kMs;
  chain.first_backoff_us = random.Between(20, 100) * kMs;
  chain.longest_backoff_us = random.Between(500, 3'000) * kMs;
  chain.stable_us = random.Between(5'000, 15'000) * kMs;
  times.plan_grace_us = 2 * times.latest_data_us + random.Between(400, 2'000) * kMs;
}

void DrawHandOff(Random& random, Timings& times) {
  times.stream_lease_us = random.Between(1'500, 5'000) * kMs;
  times.writer_lease_us = random.Between(times.latest_data_us * 3 / 2, 5'000 * kMs);
  times.kv_heartbeat_us = times.writer_lease_us / random.Between(5, 8);
  times.lease_tick_us = times.writer_lease_us / random.Between(8, 16);
  times.receipt_asks = static_cast<int>(random.Between(1, 4));
  const int64_t patience_us = times.latest_data_us * 3 / 2;
  times.receipt_us = std::max(random.Between(200, 1'500) * kMs, patience_us / times.receipt_asks);
}

}  // namespace

Timings DrawTimings(Random& random) {
  Timings times;
  times.latest_data_us = random.Between(500, 2'000) * kMs;
  DrawMembership(random, times);
  times.endpoint_silence_us = 2 * times.latest_data_us + random.Between(400, 2'000) * kMs;
  DrawChain(random, times);
  DrawHandOff(random, times);
  times.pairing_timeout_us = random.Between(2'000, 5'000) * kMs;
  times.report_us = random.Between(50, 500) * kMs;
  times.first_probation_us = random.Between(50, 300) * kMs;
  times.longest_probation_us = random.Between(1'000, 5'000) * kMs;
  times.overload_backoff.first_us = random.Between(20, 100) * kMs;
  times.overload_backoff.longest_us = random.Between(500, 2'000) * kMs;
  return times;
}

// The longest of what may have begun with the last moment of the last fault; each but the first
// begins with how its victims learn of it.
int64_t Timings::RecoveryUs() const {
  const int64_t wired_us = chain.longest_backoff_us + kAtOnceUs;
  const int64_t joined_us = membership.longest_backoff_us + kAtOnceUs;
  // Before others say so a rank that does not come to a sum has a third of the grace more.
  const int64_t stuck_us = plan_grace_us + (sum_timeout_us > 0 ? plan_grace_us / 3 : 0);
  const int64_t grouped_us = sum_timeout_us > 0 ? kSlowestConnectUs + wired_us : 0;
  return std::max({
      // A router that no name has led to yet.
      resolve_us + kSlowestDnsUs + joined_us,
      // A rank that a dead stage still has, under another name.
      lease_us + joined_us + wired_us,
      // One end of a call that notices late that it broke.
      kLatestBreakUs + std::max({joined_us, wired_us, longest_probation_us + kAtOnceUs}),
      // A stage whose link stands and that is gone, or a message that is lost on the way to it.
      std::max(chain.silence_us, stuck_us + kAtOnceUs) + wired_us,
      // An endpoint that has fallen silent, and its successor. The half more is the interval of a
      // ping, that of a look, and the windows of a storm's slow links.
      endpoint_silence_us * 3 / 2 + membership.heartbeat_us + joined_us + wired_us,
      // A rank that takes its time to connect to the others of its stage.
      grouped_us,
  });
}

std::string Timings::Summary() const {
  return absl::StrCat(
      "heartbeat=", membership.heartbeat_us / kMs, " lease=", lease_us / kMs,
      " backoff<=", membership.longest_backoff_us / kMs, " resolve=", resolve_us / kMs,
      " grace=", membership.grace_us / kMs, " pairing=", pairing_timeout_us / kMs,
      " probation<=", longest_probation_us / kMs, " silence=", chain.silence_us / kMs,
      " linking=", chain.linking_limit_us / kMs, " rewire<=", chain.longest_backoff_us / kMs,
      " endpoint-silence=", endpoint_silence_us / kMs, " plan-grace=", plan_grace_us / kMs,
      " stream-lease=", stream_lease_us / kMs, " writer-lease=", writer_lease_us / kMs,
      " kv-heartbeat=", kv_heartbeat_us / kMs, " receipt=", receipt_us / kMs, "*", receipt_asks,
      " data-late<=", latest_data_us / kMs, " recovery=", RecoveryUs() / kMs);
}

}  // namespace baton::sim

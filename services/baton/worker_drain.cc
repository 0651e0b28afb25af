#include "services/baton/worker_drain.h"

#include <chrono>
#include <thread>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/stop_signal.h"
#include "services/worker/core/drain.h"

namespace baton {
namespace {

// Polls, since what it waits for lies in other threads and processes. A protocol to announce each
// end is not worth its cost.
constexpr auto kLookAgain = std::chrono::milliseconds(10);
constexpr int64_t kReportUs = 100'000;  // Every answer says for whom the router still needs it.
constexpr int64_t kProgressUs = 5'000'000;
constexpr int64_t kLeaveMs = 1'000;

}  // namespace

void DrainWorker(int64_t drain_timeout_ms, const DrainedService& service,
                 worker::ClusterClient& client) {
  NoteStopRequested();  // Also where no signal came: peers that vanish now are no news.
  worker::Drain drain({.drain_us = drain_timeout_ms * 1000});
  drain.Begin(NowUs());
  service.begin(drain.deadline_us());
  client.StopConnecting();
  client.ReportSoon();
  LOG(kInfo) << "drain begins: nothing new is taken, " << service.load().running_requests()
             << " requests run here, at most " << drain_timeout_ms << " ms (--drain-timeout-ms)";
  int64_t reported_us = NowUs();
  int64_t progress_us = reported_us;
  worker::DrainPhase before = drain.phase();
  while (true) {
    const worker::DrainNews news = client.drain_news();
    const worker::DrainFacts facts{service.at_rest(), news.untold_routers, news.needed_requests};
    const int64_t now_us = NowUs();
    const worker::DrainPhase phase = drain.Update(facts, now_us);
    if (phase == worker::DrainPhase::kLeaving) {
      if (!facts.at_rest) {
        LOG(kWarning) << "leaving all the same; waited for: " << WhatDrainWaitsFor(facts);
      }
      break;
    }
    if (phase != before) {
      LOG(kWarning) << "the drain's time is over, what is left ends now; waited for: "
                    << WhatDrainWaitsFor(facts);
      before = phase;
    }
    if (now_us - progress_us >= kProgressUs) {
      LOG(kInfo) << "draining for " << (now_us - drain.begun_us()) / 1'000'000
                 << " s, waits for: " << WhatDrainWaitsFor(facts);
      progress_us = now_us;
    }
    if (now_us - reported_us >= kReportUs) {
      client.ReportSoon();
      reported_us = now_us;
    }
    std::this_thread::sleep_for(kLookAgain);
  }
  client.Leave(kLeaveMs);
  const DrainCounts counts = service.counts();
  if (counts.time_over_total > 0) {
    LOG(kWarning) << "ended " << counts.time_over_total
                  << " requests that were not done in time (--drain-timeout-ms)";
  }
  LOG(kInfo) << "drain ends after " << (NowUs() - drain.begun_us()) / 1000
             << " ms: refused=" << counts.refused_total
             << " handed_back=" << counts.handed_back_total
             << " time_over=" << counts.time_over_total;
}

}  // namespace baton

// What the router's core takes for a choice and for a heartbeat, in a small cluster and in one of
// 10,000 workers. One thread, no I/O. Prints one flat JSON object: choice_us, the time to handle a
// request up to its first calls, and choice_growth, the same over that of 64 workers.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"
#include "nlohmann/json.hpp"
#include "services/router/core/prefix_keys.h"
#include "services/router/core/router_core.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

constexpr int kSmall = 64;
constexpr int kLarge = 10'000;
// Before anything is measured: then the index of what is cached is as large as it gets.
constexpr int kWarmUp = 150'000;
constexpr int kRounds = 20;
constexpr int kChoicesOfRound = 500;
constexpr int kInFlight = 64;
constexpr int kPromptTokens = 4000;
constexpr uint64_t kFamilies = 100;  // Prompts of one have the first half in common.
// KV pages of each cluster, so that both remember as many prompts.
constexpr int kPagesOfAll = 40'000'000;
constexpr uint64_t kIncarnation = 7;

double MicrosOf(const std::chrono::steady_clock::time_point& begun) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun)
      .count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A router and its workers: half of them chains and half decode services, or all of them colocated
// chains.
class Cluster {
 public:
  Cluster(int workers, bool colocated) : core_(Limits(workers)) {
    for (int i = 0; i < workers; ++i) {
      WorkerInfo worker;
      if (colocated) {
        worker = TestColocated("x" + std::to_string(i), 0, 1);
      } else if (i % 2 == 0) {
        worker = TestStage("c" + std::to_string(i), 0, 1);
      } else {
        worker = TestDecode("d" + std::to_string(i));
      }
      worker.page_count = kPagesOfAll / workers;
      worker.max_context_tokens = 32'768;
      worker.max_running_requests = 64;
      workers_.push_back(worker);
      Handle(LeaseAsked{workers_.size(), worker, {}});
    }
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < workers_.size(); ++i) Beat(i);
    }
    BATON_CHECK(core_.membership().HasReadyPair()) << core_.membership().WhatIsMissing();
  }

  // The time to handle one request's submission; what it began with is ended some requests later.
  double Submit() {
    while (begun_.size() >= kInFlight) EndOldest();
    CallSubmitted call;
    call.call_id = ++calls_;
    call.request_id = "request-" + std::to_string(calls_);
    call.prompt_tokens = kPromptTokens;
    call.max_tokens = 100;
    const uint64_t family = random_.Below(kFamilies);
    for (size_t i = 0; PrefixTokens(i + 1) <= kPromptTokens; ++i) {
      const bool common = PrefixTokens(i + 1) <= kPromptTokens / 2;
      call.prefix.push_back(Mix64(common ? family << 32 | i : calls_ << 40 | i));
    }
    const Event event = std::move(call);
    actions_.clear();
    now_us_ += 100;
    const auto begun = std::chrono::steady_clock::now();
    core_.Handle(event, now_us_, actions_);
    const double took_us = MicrosOf(begun);
    BATON_CHECK(actions_.size() == 1) << "a request had " << actions_.size() << " actions";
    begun_.push_back(actions_.front());
    return took_us;
  }

  // The time to handle a heartbeat whose load differs from the last one's.
  double Beat(size_t worker) {
    HeartbeatReceived beat;
    beat.rpc_id = worker + 1;
    beat.ready = true;
    beat.load.running_requests = static_cast<int>(random_.Below(8));
    beat.load.queued_tokens = static_cast<int64_t>(random_.Below(4000));
    beat.load.free_pages = 4000 - static_cast<int>(random_.Below(500));
    const Event event = beat;
    actions_.clear();
    now_us_ += 10;
    const auto begun = std::chrono::steady_clock::now();
    core_.Handle(event, now_us_, actions_);
    return MicrosOf(begun);
  }
  double BeatAny() { return Beat(random_.Below(workers_.size())); }

 private:
  static RouterLimits Limits(int workers) {
    RouterLimits limits;
    limits.incarnation = kIncarnation;
    limits.max_requests = 4 * kInFlight;
    limits.membership.max_workers = workers;
    limits.membership.lease_us = int64_t{1} << 50;
    return limits;
  }

  void Handle(const Event& event) {
    actions_.clear();
    core_.Handle(event, now_us_, actions_);
  }

  void EndOldest() {
    const Action first = begun_.front();
    begun_.pop_front();
    uint64_t attempt = 0;
    if (const auto* reserve = std::get_if<Reserve>(&first)) {
      attempt = reserve->attempt_id;
      Handle(ReserveReplied{attempt, Ticket{reserve->decode, 0, 5, kPromptTokens, 7, {}}});
    } else {
      attempt = std::get<StartGeneration>(first).attempt_id;
    }
    now_us_ += 1000;
    Handle(PrefillEnded{attempt, absl::OkStatus(), {}, kPromptTokens / 2});
    Handle(TokenReceived{attempt, {7, 0, {}}});
    Handle(DecodeEnded{attempt, FinishReason::kStop});
    BATON_CHECK(std::holds_alternative<FinishCall>(actions_.back())) << "a request has not ended";
  }

  RouterCore core_;
  std::vector<WorkerInfo> workers_;
  std::vector<Action> actions_;
  std::deque<Action> begun_;
  Random random_{1};
  uint64_t calls_ = 0;
  int64_t now_us_ = 0;
};

struct Times {
  double small_us = 0;
  double large_us = 0;
  double heartbeat_us = 0;  // In the large one.
};

// In turns, so that what else the machine does falls on both.
Times Measure(bool colocated) {
  Cluster small(kSmall, colocated);
  Cluster large(kLarge, colocated);
  std::vector<double> small_us;
  std::vector<double> large_us;
  std::vector<double> heartbeat_us;
  for (int i = 0; i < kWarmUp; ++i) small.Submit();
  for (int i = 0; i < kWarmUp; ++i) large.Submit();
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kChoicesOfRound; ++i) small_us.push_back(small.Submit());
    for (int i = 0; i < kChoicesOfRound; ++i) large_us.push_back(large.Submit());
    for (int i = 0; i < kChoicesOfRound; ++i) heartbeat_us.push_back(large.BeatAny());
  }
  return {Median(small_us), Median(large_us), Median(heartbeat_us)};
}

int Main() {
  const Times apart = Measure(/*colocated=*/false);
  const Times colocated = Measure(/*colocated=*/true);
  nlohmann::ordered_json out;
  out["choice_us"] = std::max(apart.large_us, colocated.large_us);
  out["choice_growth"] =
      std::max(apart.large_us / apart.small_us, colocated.large_us / colocated.small_us);
  out["heartbeat_us"] = std::max(apart.heartbeat_us, colocated.heartbeat_us);
  out["choice_apart_us"] = apart.large_us;
  out["choice_apart_64_us"] = apart.small_us;
  out["choice_colocated_us"] = colocated.large_us;
  out["choice_colocated_64_us"] = colocated.small_us;
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace baton::router

int main() { return baton::router::Main(); }

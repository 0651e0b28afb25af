// The record of a run: raw facts, which summary.h aggregates. Microseconds are virtual, from the
// run's beginning.
#ifndef SERVICES_SIMULATOR_RUN_RECORD_H_
#define SERVICES_SIMULATOR_RUN_RECORD_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/prefill/core/stage_times.h"
#include "services/timeline/timeline.h"

namespace baton::simulator {

inline constexpr int64_t kNotYetUs = -1;

struct RequestRecord {
  int prompt_tokens = 0;
  int output_tokens = 0;  // Requested.
  int64_t arrival_us = kNotYetUs;
  int64_t first_token_us = kNotYetUs;
  int64_t last_token_us = kNotYetUs;
  int64_t end_us = kNotYetUs;
  int tokens = 0;         // Received.
  int cached_tokens = 0;  // What its last chain had of the prompt.
  int attempts = 0;
  std::string chain;  // The last attempt's; empty without one.
  std::string decode;
  absl::Status status;

  bool answered() const { return end_us != kNotYetUs && status.ok(); }
  int64_t ttft_us() const { return first_token_us - arrival_us; }
  // Microseconds of each token after the first; 0 without one.
  double tpot_us() const {
    return tokens < 2 ? 0 : static_cast<double>(last_token_us - first_token_us) / (tokens - 1);
  }
};

// A number over time.
class Gauge {
 public:
  void Set(int64_t now_us, int64_t value) {
    area_ += static_cast<double>(value_) * static_cast<double>(now_us - since_us_);
    since_us_ = now_us;
    value_ = value;
    most_ = std::max(most_, value);
  }
  int64_t most() const { return most_; }
  double Mean(int64_t end_us) const {
    if (end_us <= 0) return 0;
    const double last = static_cast<double>(value_) * static_cast<double>(end_us - since_us_);
    return (area_ + last) / static_cast<double>(end_us);
  }

 private:
  double area_ = 0;
  int64_t since_us_ = 0;
  int64_t value_ = 0;
  int64_t most_ = 0;
};

// A histogram of very many times; quantiles are precise to within two percent.
class TimeHistogram {
 public:
  void Add(int64_t us) {
    const double place = us < 1 ? 0 : 1 + std::floor(std::log(static_cast<double>(us)) / kStep);
    ++counts_[static_cast<size_t>(std::min<double>(place, kBuckets - 1))];
    ++count_;
    sum_us_ += static_cast<double>(us);
    most_us_ = std::max(most_us_, us);
  }
  int64_t count() const { return count_; }
  int64_t most_us() const { return most_us_; }
  double MeanUs() const { return count_ == 0 ? 0 : sum_us_ / static_cast<double>(count_); }
  // The middle of the bucket that holds the nearest rank.
  double QuantileUs(double share) const {
    const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(count_)));
    int64_t seen = 0;
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      seen += counts_[bucket];
      if (seen < std::max<int64_t>(rank, 1)) continue;
      const double middle = std::exp(kStep * (static_cast<double>(bucket) - 0.5));
      return bucket == 0 ? 0 : std::min(middle, static_cast<double>(most_us_));
    }
    return 0;
  }

 private:
  static constexpr double kStep = 0.02;     // A bucket's width in the logarithm.
  static constexpr size_t kBuckets = 1500;  // Up to four months.
  std::vector<int64_t> counts_ = std::vector<int64_t>(kBuckets);
  int64_t count_ = 0;
  double sum_us_ = 0;
  int64_t most_us_ = 0;
};

// ComputeRecord's `request` is the index in the workload.
using ComputeRecord = timeline::ComputeRecord;
using TimelineWindow = timeline::TimelineWindow;

struct StageRecord {
  int layers = 0;
  prefill::StageTimes times;
  int64_t plans = 0;
  int64_t tokens = 0;
  std::vector<ComputeRecord> computes;  // Only those that the timeline shows.
};

// A chain's, or a decode service's.
struct ChainRecord {
  std::vector<StageRecord> stages;
  Gauge queued;  // Requests that wait at stage 0, of a decode service for pages or a slot.
  Gauge open;    // Requests that are in the chain, of a decode service in the batch.
  Gauge pages;   // Owned pages, of `page_count` in each stage.
  int page_count = 0;
  int64_t retractions = 0;
};

struct RunRecord {
  std::vector<RequestRecord> requests;
  std::vector<ChainRecord> chains;
  std::vector<ChainRecord> decodes;
  Gauge waiting;                 // Requests that wait for a pair or for room on one.
  TimeHistogram between_tokens;  // All requests: from each token to the next.
  bool timeline_full = false;    // Later computations were left out.
  int64_t end_us = 0;
};

}  // namespace baton::simulator

#endif  // SERVICES_SIMULATOR_RUN_RECORD_H_

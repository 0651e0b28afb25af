#include "services/simulator/summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace baton::simulator {
namespace {

double Rank(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

bool Good(const RequestRecord& request, const Objectives& objectives) {
  const auto within = [](double micros, int64_t limit_ms) {
    return limit_ms == 0 || micros <= static_cast<double>(limit_ms) * 1e3;
  };
  return within(static_cast<double>(request.ttft_us()), objectives.ttft_ms) &&
         within(request.tpot_us(), objectives.tpot_ms);
}

}  // namespace

Distribution DistributionOf(std::vector<double> values) {
  Distribution result;
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  result.count = static_cast<int64_t>(values.size());
  result.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  result.p50 = Rank(values, 0.5);
  result.p90 = Rank(values, 0.9);
  result.p99 = Rank(values, 0.99);
  result.most = values.back();
  return result;
}

Distribution DistributionOf(const TimeHistogram& times) {
  if (times.count() == 0) return {};
  return {times.count(),
          times.MeanUs() * 1e-3,
          times.QuantileUs(0.5) * 1e-3,
          times.QuantileUs(0.9) * 1e-3,
          times.QuantileUs(0.99) * 1e-3,
          static_cast<double>(times.most_us()) * 1e-3};
}

Summary Summarize(const RunRecord& record, const Objectives& objectives) {
  Summary summary;
  std::vector<double> ttft_ms;
  std::vector<double> tpot_ms;
  std::vector<double> end_ms;
  double prompt_tokens = 0;
  double output_tokens = 0;
  for (const RequestRecord& request : record.requests) {
    ++summary.requests;
    if (request.attempts > 1) ++summary.retried;
    if (!request.answered()) {
      ++summary.failed[absl::StatusCodeToString(request.status.code())];
      if (summary.first_failure.empty()) {
        summary.first_failure = std::string(request.status.message());
      }
      continue;
    }
    ++summary.answered;
    ttft_ms.push_back(static_cast<double>(request.ttft_us()) * 1e-3);
    if (request.tokens > 1) tpot_ms.push_back(request.tpot_us() * 1e-3);
    end_ms.push_back(static_cast<double>(request.last_token_us - request.arrival_us) * 1e-3);
    prompt_tokens += request.prompt_tokens;
    output_tokens += request.tokens;
    if (Good(request, objectives)) ++summary.good;
  }
  summary.ttft_ms = DistributionOf(std::move(ttft_ms));
  summary.tpot_ms = DistributionOf(std::move(tpot_ms));
  summary.itl_ms = DistributionOf(record.between_tokens);
  summary.end_ms = DistributionOf(std::move(end_ms));
  summary.seconds = static_cast<double>(record.end_us) * 1e-6;
  if (record.end_us == 0) return summary;
  summary.requests_per_s = static_cast<double>(summary.answered) / summary.seconds;
  summary.prompt_tokens_per_s = prompt_tokens / summary.seconds;
  summary.output_tokens_per_s = output_tokens / summary.seconds;
  summary.goodput_per_s = static_cast<double>(summary.good) / summary.seconds;
  return summary;
}

}  // namespace baton::simulator

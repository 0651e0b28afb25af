#include "services/router/core/rate_limits.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/router/core/context_overflow.h"

namespace baton::router {
namespace {

constexpr double kMinuteUs = 60e6;
// A bucket that was filled in several steps may lack this much of what it should hold.
constexpr double kRounding = 1e-6;

// How long it takes until a bucket that has `held` holds `wanted`.
int64_t WaitMs(double held, double wanted, int64_t per_minute) {
  return static_cast<int64_t>(
      std::ceil((wanted - held) * kMinuteUs / static_cast<double>(per_minute) / 1000));
}

constexpr char kTenantField[] = "tenant";

}  // namespace

bool IsRateLimited(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && FieldOf(status) == kTenantField;
}

void RateLimits::Fill(Bucket& bucket, int64_t now_us) const {
  const double minutes =
      static_cast<double>(std::max<int64_t>(0, now_us - bucket.at_us)) / kMinuteUs;
  const auto fill = [minutes](double& held, int64_t per_minute) {
    const auto most = static_cast<double>(per_minute);
    held = std::min(most, held + minutes * most);
  };
  fill(bucket.requests, options_.requests_per_minute);
  fill(bucket.tokens, options_.tokens_per_minute);
  bucket.at_us = now_us;
}

RateLimits::Bucket& RateLimits::BucketOf(const std::string& tenant, int64_t now_us) {
  const auto known = buckets_.find(tenant);
  if (known != buckets_.end()) {
    Fill(known->second, now_us);
    return known->second;
  }
  if (buckets_.size() >= kMostTenants) ForgetRested();
  return buckets_[tenant] = {static_cast<double>(options_.requests_per_minute),
                             static_cast<double>(options_.tokens_per_minute), now_us};
}

// Half of them, so that it is rarely done. Full buckets are those of tenants that rested a minute,
// so mostly nothing is given away.
void RateLimits::ForgetRested() {
  std::vector<int64_t> times;
  times.reserve(buckets_.size());
  for (const auto& [tenant, bucket] : buckets_) times.push_back(bucket.at_us);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  std::erase_if(buckets_,
                [last = *middle](const auto& entry) { return entry.second.at_us <= last; });
}

absl::Status RateLimits::Take(const std::string& tenant, int64_t tokens, int64_t now_us) {
  if (!limits()) return absl::OkStatus();
  const int64_t most = options_.tokens_per_minute;
  if (most > 0 && tokens > most) {
    ++refused_.tokens_total;
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt and max_tokens are ", tokens, " tokens, more than the ", most,
                     " that a tenant may ask for in a minute (--tenant-tokens-per-minute)"));
  }
  Bucket& bucket = BucketOf(tenant, now_us);
  const auto refuse = [](int64_t& count, const char* what, int64_t per_minute, int64_t wait_ms) {
    ++count;
    const std::string message =
        absl::StrCat("has used its ", per_minute, " ", what, " of a minute (--tenant-", what,
                     "-per-minute); try again in ", wait_ms, " ms");
    return Overloaded(FieldError(absl::StatusCode::kResourceExhausted, kTenantField, message),
                      std::max<int64_t>(1, wait_ms));
  };
  const int64_t requests = options_.requests_per_minute;
  if (requests > 0 && bucket.requests < 1 - kRounding) {
    return refuse(refused_.requests_total, "requests", requests,
                  WaitMs(bucket.requests, 1, requests));
  }
  if (most > 0 && bucket.tokens < static_cast<double>(tokens) - kRounding) {
    return refuse(refused_.tokens_total, "tokens", most,
                  WaitMs(bucket.tokens, static_cast<double>(tokens), most));
  }
  bucket.requests -= 1;
  bucket.tokens -= static_cast<double>(tokens);
  return absl::OkStatus();
}

void RateLimits::GiveBack(const std::string& tenant, int64_t tokens, int64_t now_us) {
  if (options_.tokens_per_minute == 0) return;
  Bucket& bucket = BucketOf(tenant, now_us);
  bucket.tokens = std::min(static_cast<double>(options_.tokens_per_minute),
                           bucket.tokens + static_cast<double>(tokens));
}

}  // namespace baton::router

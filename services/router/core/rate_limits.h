// What a tenant may ask for: two token buckets each, of requests and of tokens, which hold what is
// allowed in a minute and fill again within one. Plain data of RouterCore.
//
// A request takes its prompt and the tokens that it asks for, and its end gives back what it did
// not use. One that names no length takes its prompt alone; what it generates is owed, so that the
// bucket may be below zero.
#ifndef SERVICES_ROUTER_CORE_RATE_LIMITS_H_
#define SERVICES_ROUTER_CORE_RATE_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"

namespace baton::router {

// 0: as many as there are.
struct RateLimitOptions {
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;
};

// Requests that were refused, by the limit.
struct RateLimitCounts {
  int64_t requests_total = 0;
  int64_t tokens_total = 0;
};

// Whether an error says that a tenant has used what it may.
bool IsRateLimited(const absl::Status& status);

class RateLimits {
 public:
  // Remembers what so many tenants have used. Of more, those that have rested the longest are
  // forgotten, and have all that is allowed again.
  static constexpr size_t kMostTenants = 65'536;

  explicit RateLimits(const RateLimitOptions& options) : options_(options) {}

  // Takes one request and `tokens` of what the tenant has left. RESOURCE_EXHAUSTED with the time
  // after which there will be enough (Overloaded); INVALID_ARGUMENT for more tokens than a minute
  // has.
  absl::Status Take(const std::string& tenant, int64_t tokens, int64_t now_us);
  // The request has used so many tokens fewer than it took; below zero: more.
  void GiveBack(const std::string& tenant, int64_t tokens, int64_t now_us);

  const RateLimitCounts& refused() const { return refused_; }
  size_t tenants() const { return buckets_.size(); }

 private:
  struct Bucket {
    double requests = 0;
    double tokens = 0;
    int64_t at_us = 0;  // When it held these.
  };

  bool limits() const { return options_.requests_per_minute > 0 || options_.tokens_per_minute > 0; }
  Bucket& BucketOf(const std::string& tenant, int64_t now_us);
  void Fill(Bucket& bucket, int64_t now_us) const;
  void ForgetRested();

  const RateLimitOptions options_;
  std::unordered_map<std::string, Bucket> buckets_;
  RateLimitCounts refused_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_RATE_LIMITS_H_

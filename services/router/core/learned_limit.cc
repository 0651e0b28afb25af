#include "services/router/core/learned_limit.h"

#include <algorithm>

namespace baton::router {
namespace {

// From a half to all of it: routers that were refused together don't come back together.
int64_t Jittered(int64_t backoff_us, Random& random) {
  return random.Between(backoff_us / 2, backoff_us);
}

}  // namespace

void LearnedLimit::Refuse(int requests, int64_t hint_us, int64_t now_us, Random& random,
                          const BackoffRange& backoff) {
  const bool same_burst = limit_ != kUnlimited && more_ == 1 && now_us < next_us_;
  limit_ = std::min(limit_, requests);
  more_ = 1;
  // Those that were on their way when the first was refused say nothing new.
  if (same_burst) return;
  backoff_us_ = std::clamp(2 * backoff_us_, backoff.first_us, backoff.longest_us);
  next_us_ = now_us + std::max(hint_us, Jittered(backoff_us_, random));
}

void LearnedLimit::Advance(int requests, int64_t now_us, Random& random) {
  if (now_us < next_us_) return;
  if (HasRoom(requests)) {
    *this = {};
    return;
  }
  limit_ = requests + more_;
  more_ *= 2;  // Never beyond `requests` + 1, which have come up to every raise before.
  next_us_ = now_us + Jittered(backoff_us_, random);
}

}  // namespace baton::router

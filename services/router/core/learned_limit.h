// How many requests a worker takes from this router at once, as its refusals tell: the router
// cannot see a worker's queue, and what other routers put there changes by the moment.
//
// A refusal means that the requests which this router has there otherwise are as many as fit. No
// more are sent until one of them ends; and, since others may have made room meanwhile, one more
// after a backoff, then two, then four, for as long as none is refused. A refusal takes it back and
// doubles the backoff. A limit that a whole backoff long bounded nothing is forgotten. So a worker
// that is full hears of a few requests a second, however many come, and one that isn't is in use
// again at once.
#ifndef SERVICES_ROUTER_CORE_LEARNED_LIMIT_H_
#define SERVICES_ROUTER_CORE_LEARNED_LIMIT_H_

#include <cstdint>
#include <limits>

#include "common/base/clock.h"
#include "common/base/random.h"

namespace baton::router {

struct BackoffRange {
  int64_t first_us = 50'000;
  int64_t longest_us = 2'000'000;
};

class LearnedLimit {
 public:
  // `requests`: that this router has on the worker now.
  bool HasRoom(int requests) const { return requests < limit_; }

  // The worker has refused one while `requests` others were there, and asks not to be asked for
  // `hint_us`. `random` spreads the routers' next attempts.
  void Refuse(int requests, int64_t hint_us, int64_t now_us, Random& random,
              const BackoffRange& backoff = {});

  // Raises the limit when it is time.
  void Advance(int requests, int64_t now_us, Random& random);

  // When it is; kNeverUs: there is no limit.
  int64_t NextUs() const { return next_us_; }

 private:
  static constexpr int kUnlimited = std::numeric_limits<int>::max();

  int limit_ = kUnlimited;
  int more_ = 1;            // That the next raise allows.
  int64_t backoff_us_ = 0;  // 0: none was needed yet.
  int64_t next_us_ = kNeverUs;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_LEARNED_LIMIT_H_

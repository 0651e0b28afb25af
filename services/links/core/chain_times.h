// How patient the stages of a chain are with one another. Every stage of a chain has the same.
#ifndef SERVICES_LINKS_CORE_CHAIN_TIMES_H_
#define SERVICES_LINKS_CORE_CHAIN_TIMES_H_

#include <cstdint>

namespace baton::links {

struct ChainTimes {
  int64_t ping_us = 500'000;
  int64_t silence_us = 3'000'000;         // That ends a link: several pings.
  int64_t linking_limit_us = 10'000'000;  // For stage 0: until every stage is ready.
  int64_t begin_limit_us = 8'000'000;     // For a later stage: less than stage 0 waits for it.
  int64_t begin_again_us = 20'000;        // Between its tries.
  int64_t first_backoff_us = 50'000;      // Stage 0's, before it wires anew.
  int64_t longest_backoff_us = 2'000'000;
  int64_t stable_us = 10'000'000;  // A chain that was up for so long has not failed again.
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_CORE_CHAIN_TIMES_H_

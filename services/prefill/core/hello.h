// Who is in a chain, and what its stages agree on for one epoch.
#ifndef SERVICES_PREFILL_CORE_HELLO_H_
#define SERVICES_PREFILL_CORE_HELLO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/types/ticket.h"

namespace baton::prefill {

// One stage's place in a chain.
struct ChainPlace {
  std::string chain_id;
  int stage = 0;
  int stages = 1;
  int layers = 0;  // Of the whole model.
  KvWriter self;
};

// Epochs are microseconds of some wall clock or what follows another epoch; beyond this there is
// nothing to follow.
inline constexpr uint64_t kMaxEpoch = uint64_t{1} << 62;

// Opens an epoch.
struct Hello {
  uint64_t epoch = 0;  // 1 .. kMaxEpoch
  std::vector<KvWriter> stages;
  int max_plan_tokens = 0;
  int activation_credits = 0;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_HELLO_H_

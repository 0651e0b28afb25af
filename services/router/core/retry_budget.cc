#include "services/router/core/retry_budget.h"

#include <cstddef>

namespace baton::router {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

}  // namespace

RetryBudget::Slot& RetryBudget::SlotOf(int64_t now_us) {
  const int64_t second = now_us / kSecondUs;
  Slot& slot = slots_[static_cast<size_t>(second % kWindowSeconds)];
  if (slot.second != second) slot = {second, 0, 0};
  return slot;
}

bool RetryBudget::Take(int64_t now_us) {
  Slot& now = SlotOf(now_us);
  int64_t begun = 0;
  int64_t retries = 0;
  for (const Slot& slot : slots_) {
    if (slot.second <= now.second - kWindowSeconds) continue;
    begun += slot.begun;
    retries += slot.retries;
  }
  const int64_t hundredths =
      begun * options_.percent + int64_t{100} * options_.per_second * kWindowSeconds;
  if (100 * (retries + 1) > hundredths) return false;
  ++now.retries;
  return true;
}

}  // namespace baton::router

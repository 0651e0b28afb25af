// What RouterCore does after it stood still (pause.h).
#include "services/router/core/pause.h"

#include <algorithm>
#include <utility>

#include "common/base/planted_bug.h"
#include "services/router/core/router_state.h"

namespace baton::router {

// False: the planted bug takes this tick for one that would only find false deaths.
bool RouterCore::State::NoticePause() {
  const bool late = pause.Tick(now_us);
  totals.pauses_total += late ? 1 : 0;
  if (PlantedBug(Bug::kRouterDefersTicks)) {
    if (late) ticks_from_us = now_us + limits.membership.lease_us / 2;
    return now_us >= ticks_from_us;
  }
  if (late) ExcuseSilence();
  return true;
}

void RouterCore::State::ExcuseSilence() {
  const int64_t until_us = now_us + limits.membership.lease_us;
  membership.ExcuseSilence(until_us);
  for (const uint64_t call_id : table.CallIds()) {
    Transaction& txn = *table.OfCall(call_id);
    if (txn.phase != Phase::kWaiting || wait_for_room || std::exchange(txn.excused, true)) continue;
    table.SetTimer(txn, std::min(txn.deadline_us, std::max(txn.timer_us, until_us)));
  }
  // Workers that came back meanwhile have not been heard. Half of the time it may be given up.
  if (now_us >= hope_from_us) {
    hope_until_us = until_us;
    hope_from_us = until_us + limits.membership.lease_us;
  }
}

int64_t RouterCore::State::HopeUntilUs() const {
  return std::max(membership.PairExpectedUntilUs(now_us),
                  now_us < hope_until_us ? hope_until_us : 0);
}

}  // namespace baton::router

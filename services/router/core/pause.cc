// What RouterCore does after it stood still (pause.h).
#include "services/router/core/pause.h"

#include <algorithm>
#include <utility>

#include "services/router/core/router_state.h"

namespace baton::router {

void RouterCore::State::NoticePause() {
  if (!pause.Notice(now_us)) return;
  ++totals.pauses_total;
  ExcuseSilence();
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
  if (now_us >= next_pause_counts_from_us) {
    pair_awaited_until_us = until_us;
    next_pause_counts_from_us = until_us + limits.membership.lease_us;
  }
}

int64_t RouterCore::State::PairAwaitedUntilUs(int64_t at_us) const {
  return std::max(membership.PairExpectedUntilUs(at_us),
                  at_us < pair_awaited_until_us ? pair_awaited_until_us : 0);
}

}  // namespace baton::router

// Failpoints: named places where a test makes a real process fail, in the manner of etcd's.
//   BATON_FAILPOINTS="decode.kv_placed=kill;prefill.kv_send=delay:200;prefill.link=error@3"
// Each entry is NAME=ACTION[:MS][@N|%N]: `kill` ends the process as SIGKILL would, `stop` as
// SIGSTOP, `delay:MS` sleeps, `error` makes Hit return UNAVAILABLE. `@N` acts on the N-th hit
// alone, `%N` on every N-th. What acts is logged. Without the variable a failpoint costs one
// relaxed load.
#ifndef COMMON_BASE_FAILPOINT_H_
#define COMMON_BASE_FAILPOINT_H_

#include <atomic>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// Parses a specification as above and arms it; replaces what was armed. Unknown actions are
// refused, unknown names can't be: any place may be named.
absl::Status ArmFailpoints(std::string_view specification);

namespace internal {
extern std::atomic<bool> failpoints_armed;
absl::Status HitFailpoint(std::string_view name);
}  // namespace internal

// Marks the place `name`. Any thread.
inline absl::Status Failpoint(std::string_view name) {
  if (!internal::failpoints_armed.load(std::memory_order_relaxed)) return absl::OkStatus();
  return internal::HitFailpoint(name);
}

}  // namespace baton

#endif  // COMMON_BASE_FAILPOINT_H_

// What the router chose and why, a line of JSON for each attempt of a request that has ended
// (--decision-log), for `baton replay`: the candidates with what was predicted of each, which one
// was picked, and what came of it.
#ifndef SERVICES_ROUTER_DECISION_LOG_H_
#define SERVICES_ROUTER_DECISION_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/stdio_queue.h"
#include "services/router/core/router_core.h"

namespace baton::router {

// An attempt as a line has it.
struct LoggedDecision {
  std::string request_id;
  std::string policy;   // As --load-balance-policy has it.
  int64_t unix_ms = 0;  // When it was chosen.
  std::string outcome;  // "ok", or the request's error.
  Decision decision;
};

// With its newline.
std::string LineOf(const LoggedDecision& decision);
// InvalidArgument if it is none.
absl::StatusOr<LoggedDecision> ParseDecision(std::string_view line);

class DecisionLog {
 public:
  static constexpr int64_t kMostBytes = int64_t{1} << 30;  // The file holds no more.

  // Appends to the file, which only its owner and group can read: it says who asked for what, when.
  static absl::StatusOr<std::shared_ptr<DecisionLog>> Open(const std::string& path, Policy policy);

  // The loop's thread; never waits. Lines that find no room in memory or in the file are dropped,
  // and the file says how many, or the process's log that it is full.
  void Write(const std::string& request_id, const FinishCall& end, int64_t now_us, int64_t unix_ms);

 private:
  DecisionLog(int fd, std::string path, Policy policy, int64_t bytes);

  const std::string path_;
  const Policy policy_;
  int64_t bytes_;
  bool full_ = false;
  LineWriter writer_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_DECISION_LOG_H_

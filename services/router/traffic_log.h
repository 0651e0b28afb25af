// What the router's log says of its traffic: a line per request at its end, and every ten seconds,
// while there is traffic, a line with its rates. Metrics count the same; this is for eyes.
#ifndef SERVICES_ROUTER_TRAFFIC_LOG_H_
#define SERVICES_ROUTER_TRAFFIC_LOG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/log.h"
#include "services/router/core/router_core.h"
#include "services/router/gateway.h"
#include "services/router/router_metrics.h"

namespace baton::router {

class TrafficLog {
 public:
  using Write = std::function<void(std::string_view message, std::initializer_list<LogField>)>;

  // `requests`: whether each has its line. `write`: LogEvent at info, but for tests.
  explicit TrafficLog(bool requests, Write write = nullptr);

  // Any thread: a request that was refused before it had a session.
  void LogRefused(Endpoint endpoint, const std::string& request_id, const std::string& trace_id,
                  const absl::Status& status) const;

  // On the loop's thread.
  void LogEnd(const RequestEnd& end);
  void CountPrompt(int64_t tokens) { prompt_tokens_ += tokens; }  // Sent to a chain.
  void CountToken() { ++completion_tokens_; }
  // Writes the rates if they are due. Call at least every second.
  void Wake(int64_t now_us, const RouterLoad& load, size_t ready_pairs);

 private:
  bool Idle() const { return ended_ == 0 && prompt_tokens_ == 0 && completion_tokens_ == 0; }

  const bool requests_;
  const Write write_;
  // Since `begun_us_`.
  int64_t begun_us_ = 0;  // 0: no traffic.
  int64_t ended_ = 0;     // Requests.
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_TRAFFIC_LOG_H_

// Logging: LOG(kInfo) << "loaded " << n << " tensors"; lines go to stderr through spdlog as
//   2026-11-20 18:02:03.123 I prefill-1 loaded 12 tensors
// Cores don't log: they return actions and statuses that shells may log.
#ifndef COMMON_BASE_LOG_H_
#define COMMON_BASE_LOG_H_

#include <sstream>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets the level from its SGLang name (debug, info, warning, error) and the name of this process
// that stands in every line. Call once, before threads start.
absl::Status InitLogging(std::string_view level, std::string_view process_name);

bool LogEnabled(LogLevel level);

namespace internal {

class LogMessage {
 public:
  explicit LogMessage(LogLevel level) : level_(level) {}
  ~LogMessage();
  LogMessage(const LogMessage&) = delete;
  LogMessage& operator=(const LogMessage&) = delete;
  std::ostream& stream() { return message_; }

 private:
  LogLevel level_;
  std::ostringstream message_;
};

// Gives both branches of LOG's conditional the type void.
struct LogVoidify {
  void operator&(std::ostream&) const {}
};

}  // namespace internal
}  // namespace baton

// One expression, so that an unbraced `if` around it takes no `else` away.
#define LOG(level)                               \
  !::baton::LogEnabled(::baton::LogLevel::level) \
      ? (void)0                                  \
      : ::baton::internal::LogVoidify() &        \
            ::baton::internal::LogMessage(::baton::LogLevel::level).stream()

#endif  // COMMON_BASE_LOG_H_

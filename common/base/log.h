// Logging: LOG(kInfo) << "loaded " << n << " tensors"; lines go to stderr through spdlog as
//   2026-11-20 18:02:03.123 I prefill-1 loaded 12 tensors
// or, for programs,
//   {"time":"2026-11-20T18:02:03.123+00:00","level":"info","process":"prefill-1",
//    "message":"loaded 12 tensors"}
// What has values to be found and summed goes by LogEvent, which keeps them apart from the message.
// Cores don't log: they return actions and statuses that shells may log.
#ifndef COMMON_BASE_LOG_H_
#define COMMON_BASE_LOG_H_

#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/log_format.h"

namespace baton {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets the level from its SGLang name (debug, info, warning, error), the name of this process that
// stands in every line, and the format (text, json). Call once, before threads start.
absl::Status InitLogging(std::string_view level, std::string_view process_name,
                         std::string_view format = "text");

bool LogEnabled(LogLevel level);

// One record with named values (log_format.h). Any thread.
void LogEvent(LogLevel level, std::string_view message, std::initializer_list<LogField> fields);

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

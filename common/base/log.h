// Logging: LOG(kInfo) << "loaded " << n << " tensors"; lines go to stderr through spdlog as
//   2026-11-20 18:02:03.123 I prefill-1 loaded 12 tensors
// Cores don't log: they return actions and statuses that shells may log.
#ifndef COMMON_BASE_LOG_H_
#define COMMON_BASE_LOG_H_

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"

namespace baton {

// How one log record reads, as text and as a JSON object; pure, so that escaping is tested without
// a logger. Messages and values may hold anything that a client or a peer sent.
struct LogField {
  std::string_view name;  // [a-z0-9_]+
  std::variant<int64_t, double, std::string_view> value;
};

// `message name=value name="a value with spaces"`: one line, whatever stands in it; control
// characters are shown as \n, \t or \x1b, infinities and NaN as "-".
std::string TextRecord(std::string_view message, std::initializer_list<LogField> fields);

// `"message":"...","name":value`: the members of a JSON object, without its braces. What is no
// UTF-8 becomes U+FFFD; infinities and NaN become null.
std::string JsonRecord(std::string_view message, std::initializer_list<LogField> fields);

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

namespace baton {

// Log records with named values, for what is to be found and summed, and the choice of their
// format:
//   2026-11-20 18:02:03.123 I router request id=req-1 tokens_in=40
// or, for programs,
//   {"time":"2026-11-20T18:02:03.123+00:00","level":"info","process":"router",
//    "message":"request","id":"req-1","tokens_in":40}
// What is for eyes alone goes by LOG (log.h), whose lines follow the format too.

// "text" (the default) or "json". Call before InitLogging.
absl::Status SetLogFormat(std::string_view format);

// Any thread.
void LogEvent(LogLevel level, std::string_view message, std::initializer_list<LogField> fields);

}  // namespace baton

#endif  // COMMON_BASE_LOG_H_

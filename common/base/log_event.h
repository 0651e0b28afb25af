// Log records with named values, for what is to be found and summed, and the choice of their
// format:
//   2026-11-20 18:02:03.123 I router request id=req-1 tokens_in=40
// or, for programs,
//   {"time":"2026-11-20T18:02:03.123+00:00","level":"info","process":"router",
//    "message":"request","id":"req-1","tokens_in":40}
// What is for eyes alone goes by LOG (log.h), whose lines follow the format too.
#ifndef COMMON_BASE_LOG_EVENT_H_
#define COMMON_BASE_LOG_EVENT_H_

#include <initializer_list>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/log.h"
#include "common/base/log_format.h"

namespace baton {

// "text" (the default) or "json". Call before InitLogging.
absl::Status SetLogFormat(std::string_view format);

// Any thread.
void LogEvent(LogLevel level, std::string_view message, std::initializer_list<LogField> fields);

}  // namespace baton

#endif  // COMMON_BASE_LOG_EVENT_H_

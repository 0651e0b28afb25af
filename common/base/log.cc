#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/log_event.h"

namespace baton {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

bool json_records = false;  // Set before threads start.

// In spdlog's patterns a percent sign begins a field.
std::string PatternText(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '%' ? "%%" : std::string(1, c);
  return escaped;
}

}  // namespace

absl::Status InitLogging(std::string_view level, std::string_view process_name) {
  spdlog::level::level_enum threshold = spdlog::level::info;
  if (level == "debug") {
    threshold = spdlog::level::debug;
  } else if (level == "warning") {
    threshold = spdlog::level::warn;
  } else if (level == "error") {
    threshold = spdlog::level::err;
  } else if (level != "info") {
    return absl::InvalidArgumentError(
        absl::StrCat("log level must be debug, info, warning or error, got \"",
                     absl::string_view(level.data(), level.size()), "\""));
  }
  auto logger = spdlog::stderr_logger_mt("baton");
  logger->set_level(threshold);
  const std::string name = PatternText(process_name);
  logger->set_pattern(json_records
                          ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","process":")" + name +
                                R"(",%v})"
                          : "%Y-%m-%d %H:%M:%S.%e %L " + name + " %v");
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

absl::Status SetLogFormat(std::string_view format) {
  if (format != "text" && format != "json") {
    return absl::InvalidArgumentError(absl::StrCat("log format must be text or json, got \"",
                                                   absl::string_view(format.data(), format.size()),
                                                   "\""));
  }
  json_records = format == "json";
  return absl::OkStatus();
}

bool LogEnabled(LogLevel level) { return spdlog::should_log(ToSpdlog(level)); }

void LogEvent(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) return;
  spdlog::log(ToSpdlog(level), "{}",
              json_records ? JsonRecord(message, fields) : TextRecord(message, fields));
}

namespace internal {

LogMessage::~LogMessage() { LogEvent(level_, message_.str(), {}); }

}  // namespace internal
}  // namespace baton

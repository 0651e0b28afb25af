#include "common/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "absl/strings/str_cat.h"

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
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L " + std::string(process_name) + " %v");
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

bool LogEnabled(LogLevel level) { return spdlog::should_log(ToSpdlog(level)); }

namespace internal {

LogMessage::~LogMessage() { spdlog::log(ToSpdlog(level_), "{}", message_.str()); }

}  // namespace internal
}  // namespace baton

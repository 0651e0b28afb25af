#include "common/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

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

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD.

bool IsControl(unsigned char c) { return c < 0x20 || c == 0x7f; }

// The length of the valid UTF-8 character that begins at `text`, or 0: shortest forms only, no
// surrogates, nothing beyond U+10FFFF.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if (first == 0xe0 && second < 0xa0) return 0;
  if (first == 0xed && second > 0x9f) return 0;
  if (first == 0xf0 && second < 0x90) return 0;
  if (first == 0xf4 && second > 0x8f) return 0;
  return length;
}

void AppendEscaped(std::string& out, unsigned char c, bool json) {
  switch (c) {
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += json ? absl::StrFormat("\\u%04x", c) : absl::StrFormat("\\x%02x", c);
  }
}

void AppendText(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (IsControl(static_cast<unsigned char>(c))) {
      AppendEscaped(out, static_cast<unsigned char>(c), /*json=*/false);
    } else {
      out += c;
    }
  }
}

// Quoted unless it is one word that cannot be taken for more.
void AppendTextValue(std::string& out, std::string_view value) {
  const bool word = !value.empty() && value.find_first_of(" \"=") == std::string_view::npos;
  if (word) return AppendText(out, value);
  out += '"';
  for (const char c : value) {
    if (c == '"') out += '\\';
    AppendText(out, std::string_view(&c, 1));
  }
  out += '"';
}

void AppendJsonString(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const char c = text[0];
    if (bytes == 0) {
      out += kReplacement;
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (IsControl(static_cast<unsigned char>(c))) {
      AppendEscaped(out, static_cast<unsigned char>(c), /*json=*/true);
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  out += '"';
}

void AppendValue(const LogField& field, std::string_view not_finite,
                 void (*append_text)(std::string&, std::string_view), std::string& out) {
  if (const auto* number = std::get_if<int64_t>(&field.value)) {
    absl::StrAppend(&out, *number);
  } else if (const auto* real = std::get_if<double>(&field.value)) {
    out += std::isfinite(*real) ? absl::StrFormat("%.6g", *real) : std::string(not_finite);
  } else {
    append_text(out, std::get<std::string_view>(field.value));
  }
}

}  // namespace

std::string TextRecord(std::string_view message, std::initializer_list<LogField> fields) {
  std::string out;
  AppendText(out, message);
  for (const LogField& field : fields) {
    out += ' ';
    out += field.name;
    out += '=';
    AppendValue(field, "-", AppendTextValue, out);
  }
  return out;
}

std::string JsonRecord(std::string_view message, std::initializer_list<LogField> fields) {
  std::string out = "\"message\":";
  AppendJsonString(out, message);
  for (const LogField& field : fields) {
    out += ',';
    AppendJsonString(out, field.name);
    out += ':';
    AppendValue(field, "null", AppendJsonString, out);
  }
  return out;
}

}  // namespace baton

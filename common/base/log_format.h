// How one log record reads, as text and as a JSON object; pure, so that escaping is tested without
// a logger. Messages and values may hold anything that a client or a peer sent.
#ifndef COMMON_BASE_LOG_FORMAT_H_
#define COMMON_BASE_LOG_FORMAT_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

namespace baton {

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

}  // namespace baton

#endif  // COMMON_BASE_LOG_FORMAT_H_

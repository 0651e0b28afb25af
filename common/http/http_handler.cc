#include "common/http/http_handler.h"

#include "absl/strings/match.h"
#include "common/base/strings.h"

namespace baton {

std::string_view FindHeader(const HttpHeaders& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, ToAbsl(name))) return value;
  }
  return {};
}

HttpResponse PlainHttpError(int status, const std::string& message) {
  return {status, "text/plain; charset=utf-8", message + "\n"};
}

}  // namespace baton

// The key in an Authorization header.
#ifndef SERVICES_ROUTER_BEARER_H_
#define SERVICES_ROUTER_BEARER_H_

#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace baton::router {

// "Bearer KEY" -> "KEY"; empty for another scheme. Schemes have no case (RFC 9110, 11.1), and white
// space around the key is no part of it.
inline std::string_view BearerKey(std::string_view header) {
  constexpr absl::string_view kScheme = "bearer";
  absl::string_view value =
      absl::StripAsciiWhitespace(absl::string_view(header.data(), header.size()));
  if (!absl::StartsWithIgnoreCase(value, kScheme)) return {};
  value.remove_prefix(kScheme.size());
  if (value.empty() || !absl::ascii_isspace(static_cast<unsigned char>(value.front()))) return {};
  value = absl::StripLeadingAsciiWhitespace(value);
  return {value.data(), value.size()};
}

}  // namespace baton::router

#endif  // SERVICES_ROUTER_BEARER_H_

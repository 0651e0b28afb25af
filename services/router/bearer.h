// The key in an Authorization header, and whose it is.
#ifndef SERVICES_ROUTER_BEARER_H_
#define SERVICES_ROUTER_BEARER_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/router/core/prefix_keys.h"

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

// The tenant that a request counts as: the one that it names, else the owner of its API key if the
// server `asks_for_keys`, else "", one for all. Names that are too long for a name, and keys, which
// are secret, are shown by their hash.
inline std::string TenantOf(std::string_view name, bool asks_for_keys, std::string_view key) {
  constexpr size_t kMaxNameBytes = 128;
  const auto hashed = [](std::string_view text) {
    return absl::StrCat(absl::Hex(RoutingKey(std::string(text)), absl::kZeroPad16));
  };
  if (!name.empty()) return name.size() <= kMaxNameBytes ? std::string(name) : hashed(name);
  return asks_for_keys && !key.empty() ? absl::StrCat("key ", hashed(key)) : "";
}

}  // namespace baton::router

#endif  // SERVICES_ROUTER_BEARER_H_

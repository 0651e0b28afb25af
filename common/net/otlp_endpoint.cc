#include "common/net/otlp_endpoint.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/net/host.h"

namespace baton::net {
namespace {

constexpr char kHttp[] = "http://";

absl::Status Refuse(const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("got '", text, "'; expected HOST:PORT or http://HOST:PORT of a collector that ",
                   "takes OTLP over gRPC", why));
}

}  // namespace

absl::StatusOr<std::string> ParseOtlpEndpoint(const std::string& text) {
  if (absl::StartsWith(text, "https://")) {
    return Refuse(text, ": connections are not encrypted yet");
  }
  absl::string_view rest = absl::StripPrefix(text, kHttp);
  const bool url = rest.size() != text.size();
  if (url) rest = absl::StripSuffix(rest, "/");
  if (absl::StrContains(rest, "://")) return Refuse(text, "");
  if (absl::StrContains(rest, "/")) return Refuse(text, ", which has no path");
  const bool bracketed = absl::StartsWith(rest, "[");
  const bool has_port = bracketed ? absl::StrContains(rest, "]:") : absl::StrContains(rest, ":");
  const std::string full = has_port ? std::string(rest) : absl::StrCat(rest, ":", kDefaultOtlpPort);
  const auto address = SplitHostPort(full);
  if (!address.ok() || address->first.empty()) return Refuse(text, "");
  return JoinHostPort(address->first, address->second);
}

}  // namespace baton::net

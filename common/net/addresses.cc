#include "common/net/addresses.h"

#include <netdb.h>
#include <sys/socket.h>

#include <memory>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/net/host.h"

namespace baton::net {
namespace {

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Null, and `error`, if there is none.
Found Lookup(const std::string& host, int flags, int& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  return {found, &freeaddrinfo};
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitHostPorts(absl::string_view text) {
  std::vector<std::string> parts;
  if (absl::StripAsciiWhitespace(text).empty()) return parts;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (const auto split = SplitHostPort(part); !split.ok()) return split.status();
    parts.emplace_back(part);
  }
  return parts;
}

absl::StatusOr<std::vector<std::string>> NumericAddresses(const std::string& host_port) {
  const auto split = SplitHostPort(host_port);
  if (!split.ok()) return split.status();
  int error = 0;
  const Found found = Lookup(split->first, 0, error);
  if (found == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("'", split->first, "' is not resolved: ", gai_strerror(error)));
  }
  std::set<std::string> numeric;
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    char text[NI_MAXHOST] = {};
    error = getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof(text), nullptr, 0,
                        NI_NUMERICHOST);
    if (error == 0) numeric.insert(JoinHostPort(text, split->second));
  }
  return std::vector<std::string>(numeric.begin(), numeric.end());
}

bool IsNumericHostPort(const std::string& host_port) {
  const auto split = SplitHostPort(host_port);
  int error = 0;
  return split.ok() && Lookup(split->first, AI_NUMERICHOST, error) != nullptr;
}

}  // namespace baton::net

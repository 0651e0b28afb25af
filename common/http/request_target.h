// The target of a request line (RFC 9112, 3.2): origin form, absolute form, and OPTIONS' asterisk.
#ifndef COMMON_HTTP_REQUEST_TARGET_H_
#define COMMON_HTTP_REQUEST_TARGET_H_

#include <optional>
#include <string>
#include <string_view>

namespace baton {

struct RequestTarget {
  std::string path;   // Percent-decoded; "*" for OPTIONS of the whole server.
  std::string query;  // Undecoded, without the '?'.
};

// nullopt for anything else: no path, a fragment, a broken or NUL escape.
std::optional<RequestTarget> ParseRequestTarget(std::string_view target, std::string_view method);

// Whether `text` may stand in a Host header: a name or address and perhaps a port. Empty is one.
bool IsAuthority(std::string_view text);

}  // namespace baton

#endif  // COMMON_HTTP_REQUEST_TARGET_H_

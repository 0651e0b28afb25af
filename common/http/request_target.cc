#include "common/http/request_target.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/base/strings.h"

namespace baton {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexDigit(text[i + 1]);
    const int low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return std::nullopt;
    decoded.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return decoded;
}

}  // namespace

bool IsAuthority(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("-._~!$&'()*+,;=:[]%").find(c) != std::string_view::npos;
  });
}

std::optional<RequestTarget> ParseRequestTarget(std::string_view target, std::string_view method) {
  if (target == "*") {
    if (method != "OPTIONS") return std::nullopt;
    return RequestTarget{"*", ""};
  }
  if (target.find('#') != std::string_view::npos) return std::nullopt;
  bool absolute = false;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(ToAbsl(target), ToAbsl(scheme))) continue;
    target.remove_prefix(scheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    if (end == 0 || !IsAuthority(target.substr(0, end))) return std::nullopt;
    target.remove_prefix(end);
    absolute = true;
    break;
  }
  const size_t mark = std::min(target.find('?'), target.size());
  std::string_view path = target.substr(0, mark);
  if (path.empty() && absolute) path = "/";
  if (!path.starts_with('/')) return std::nullopt;
  std::optional<std::string> decoded = PercentDecode(path);
  if (!decoded.has_value()) return std::nullopt;
  RequestTarget parsed{*std::move(decoded), ""};
  if (mark < target.size()) parsed.query = std::string(target.substr(mark + 1));
  return parsed;
}

}  // namespace baton

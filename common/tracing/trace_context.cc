#include "common/tracing/trace_context.h"

#include <algorithm>
#include <optional>
#include <set>

namespace baton::tracing {
namespace {

constexpr size_t kVersionAt = 0;
constexpr size_t kTraceAt = 3;
constexpr size_t kSpanAt = 36;
constexpr size_t kFlagsAt = 53;
constexpr size_t kBytes = 55;  // Version 00's; later versions may be longer.
constexpr uint64_t kForbiddenVersion = 0xff;
constexpr uint64_t kSampledFlag = 1;

constexpr size_t kMaxMembers = 32;
constexpr size_t kMaxKeyBytes = 256;
constexpr size_t kMaxTenantBytes = 241;
constexpr size_t kMaxSystemBytes = 14;
constexpr size_t kMaxValueBytes = 256;
constexpr size_t kLongMemberBytes =
    128;  // Members of this size are dropped first from a tracestate that is too long.

std::string_view Trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Only digits and lower-case letters: the standard refuses upper case.
std::optional<uint64_t> ParseHex(std::string_view digits) {
  uint64_t value = 0;
  for (const char c : digits) {
    if (c >= '0' && c <= '9') {
      value = value << 4 | static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value << 4 | static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return value;
}

void AppendHex(uint64_t value, std::string& out) {
  for (int shift = 60; shift >= 0; shift -= 4)
    out.push_back("0123456789abcdef"[value >> shift & 15]);
}

void AppendBytes(uint64_t value, std::string& out) {
  for (int shift = 56; shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
}

std::optional<TraceContext> ParseTraceparent(std::string_view text) {
  if (text.size() < kBytes) return std::nullopt;
  if (text[kTraceAt - 1] != '-' || text[kSpanAt - 1] != '-' || text[kFlagsAt - 1] != '-') {
    return std::nullopt;
  }
  const auto version = ParseHex(text.substr(kVersionAt, 2));
  const auto high = ParseHex(text.substr(kTraceAt, 16));
  const auto low = ParseHex(text.substr(kTraceAt + 16, 16));
  const auto span = ParseHex(text.substr(kSpanAt, 16));
  const auto flags = ParseHex(text.substr(kFlagsAt, 2));
  if (!version || !high || !low || !span || !flags || *version == kForbiddenVersion) {
    return std::nullopt;
  }
  // A later version's additions follow another dash.
  const bool longer = text.size() > kBytes;
  if (longer && (*version == 0 || text[kBytes] != '-')) return std::nullopt;
  TraceContext context;
  context.trace = {*high, *low};
  context.span = *span;
  context.sampled = (*flags & kSampledFlag) != 0;
  context.remote = true;
  if (!context.trace.valid() || context.span == 0) return std::nullopt;
  return context;
}

bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsKeyCharacter(char c) {
  return IsLower(c) || IsDigit(c) || c == '_' || c == '-' || c == '*' || c == '/';
}

bool IsKeyPart(std::string_view part, size_t max_bytes, bool digit_first) {
  return !part.empty() && part.size() <= max_bytes &&
         (IsLower(part.front()) || (digit_first && IsDigit(part.front()))) &&
         std::all_of(part.begin(), part.end(), IsKeyCharacter);
}

// "vendor", or "tenant@vendor".
bool IsKey(std::string_view key) {
  const size_t at = key.find('@');
  if (at == key.npos) return IsKeyPart(key, kMaxKeyBytes, /*digit_first=*/false);
  return IsKeyPart(key.substr(0, at), kMaxTenantBytes, /*digit_first=*/true) &&
         IsKeyPart(key.substr(at + 1), kMaxSystemBytes, /*digit_first=*/false);
}

// Printable ASCII except ',' and '='; blanks at the ends have been trimmed.
bool IsValue(std::string_view value) {
  return !value.empty() && value.size() <= kMaxValueBytes &&
         std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; });
}

// The non-empty members of all values; nullopt if one is not valid.
std::optional<std::vector<std::string_view>> ParseMembers(
    const std::vector<std::string_view>& tracestates) {
  std::vector<std::string_view> members;
  std::set<std::string_view> keys;
  for (std::string_view rest : tracestates) {
    while (!rest.empty()) {
      const size_t comma = std::min(rest.find(','), rest.size());
      const std::string_view member = Trim(rest.substr(0, comma));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
      if (member.empty()) continue;
      const size_t equals = member.find('=');
      if (equals == member.npos || !IsKey(member.substr(0, equals)) ||
          !IsValue(member.substr(equals + 1)) || !keys.insert(member.substr(0, equals)).second ||
          members.size() >= kMaxMembers) {
        return std::nullopt;
      }
      members.push_back(member);
    }
  }
  return members;
}

size_t JoinedBytes(const std::vector<std::string_view>& members) {
  size_t bytes = 0;
  for (const std::string_view member : members) bytes += member.size() + 1;
  return bytes == 0 ? 0 : bytes - 1;
}

std::string ParseTracestate(const std::vector<std::string_view>& tracestates) {
  std::optional<std::vector<std::string_view>> members = ParseMembers(tracestates);
  if (!members.has_value()) return "";
  if (JoinedBytes(*members) > kMaxTracestateBytes) {
    std::erase_if(*members, [](std::string_view m) { return m.size() > kLongMemberBytes; });
  }
  while (JoinedBytes(*members) > kMaxTracestateBytes) members->pop_back();
  std::string state;
  for (const std::string_view member : *members) {
    if (!state.empty()) state.push_back(',');
    state.append(member);
  }
  return state;
}

}  // namespace

std::string Hex(const TraceId& trace) {
  std::string out;
  AppendHex(trace.high, out);
  AppendHex(trace.low, out);
  return out;
}

std::string Hex(uint64_t span) {
  std::string out;
  AppendHex(span, out);
  return out;
}

std::string Bytes(const TraceId& trace) {
  std::string out;
  AppendBytes(trace.high, out);
  AppendBytes(trace.low, out);
  return out;
}

std::string Bytes(uint64_t span) {
  std::string out;
  AppendBytes(span, out);
  return out;
}

TraceContext ExtractTraceContext(const std::vector<std::string_view>& traceparents,
                                 const std::vector<std::string_view>& tracestates) {
  if (traceparents.size() != 1) return {};
  std::optional<TraceContext> context = ParseTraceparent(Trim(traceparents.front()));
  if (!context.has_value()) return {};
  context->state = ParseTracestate(tracestates);
  return *std::move(context);
}

std::string Traceparent(const TraceContext& context) {
  std::string out = "00-";
  AppendHex(context.trace.high, out);
  AppendHex(context.trace.low, out);
  out.push_back('-');
  AppendHex(context.span, out);
  out += context.sampled ? "-01" : "-00";
  return out;
}

}  // namespace baton::tracing

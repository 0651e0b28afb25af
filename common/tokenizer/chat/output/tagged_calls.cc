#include "common/tokenizer/chat/output/tagged_calls.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "common/json/parse_json.h"

namespace baton::chat {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kArgKey = "<arg_key>";
constexpr std::string_view kArgKeyEnd = "</arg_key>";
constexpr std::string_view kArgValue = "<arg_value>";
constexpr std::string_view kArgValueEnd = "</arg_value>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";

// The arguments of one call, as they are read.
class Arguments {
 public:
  Arguments(std::string_view function, const OfferedTools& offered) {
    const auto tool = offered.find(function);
    if (tool != offered.end()) tool_ = &tool->second;
  }

  // False if the key has been there before.
  bool Add(std::string_view key, std::string_view value) {
    const auto [entry, is_new] = keys_.emplace(Trim(key));
    if (!is_new) return false;
    json_ += json_.empty() ? "" : ", ";
    json_ += Json(*entry).dump() + ": " + Written(*entry, value);
    return true;
  }
  std::string Take() { return "{" + std::move(json_) + "}"; }

 private:
  std::string Written(const std::string& key, std::string_view value) const {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kConstants = {
        {{"True", "true"}, {"False", "false"}, {"None", "null"}}};
    if (tool_ != nullptr && tool_->text_parameters.contains(key)) return Json(value).dump();
    const std::string_view trimmed = Trim(value);
    for (const auto& [python, json] : kConstants) {
      if (trimmed == python) return std::string(json);
    }
    if (ParseJson(trimmed, "", DuplicateKeys::kKeepLast).ok()) return std::string(trimmed);
    return Json(value).dump();
  }

  const OfferedTool* tool_ = nullptr;  // Null: it is not known.
  std::set<std::string> keys_;
  std::string json_;
};

bool Take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Takes what stands before `mark`, and the mark.
std::optional<std::string_view> TakeUntil(std::string_view& text, std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = text.substr(0, at);
  text.remove_prefix(at + mark.size());
  return before;
}

// The end mark of the value that `text` begins with. One behind which neither another parameter nor
// the call's end stands is the value's own text.
size_t EndOfParameter(std::string_view text) {
  for (size_t at = text.find(kParameterEnd); at != std::string_view::npos;
       at = text.find(kParameterEnd, at + 1)) {
    const size_t next = text.find_first_not_of(kSpaces, at + kParameterEnd.size());
    if (next == std::string_view::npos) return at;
    const std::string_view rest = text.substr(next);
    if (rest.starts_with(kParameter) || rest.starts_with(kFunctionEnd)) return at;
  }
  return std::string_view::npos;
}

// The marks stand in lines of their own.
std::string_view WithoutLineEnds(std::string_view value) {
  if (value.starts_with('\r')) value.remove_prefix(1);
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  if (value.ends_with('\r')) value.remove_suffix(1);
  return value;
}

std::optional<ToolCall> Call(std::string_view name, std::string arguments) {
  name = Trim(name);
  if (name.empty() || name.size() > kMaxNameBytes) return std::nullopt;
  return ToolCall{"", std::string(name), std::move(arguments)};
}

}  // namespace

std::optional<ToolCall> ParseGlmCall(std::string_view body, const OfferedTools& offered) {
  const size_t end = std::min(body.find(kArgKey), body.size());
  const std::string_view name = Trim(body.substr(0, end));
  Arguments arguments(name, offered);
  body.remove_prefix(end);
  for (body = Trim(body); !body.empty(); body = Trim(body)) {
    if (!Take(body, kArgKey)) return std::nullopt;
    const auto key = TakeUntil(body, kArgKeyEnd);
    const auto between = TakeUntil(body, kArgValue);
    if (!key.has_value() || !between.has_value() || !Trim(*between).empty()) return std::nullopt;
    const auto value = TakeUntil(body, kArgValueEnd);
    if (!value.has_value() || !arguments.Add(*key, *value)) return std::nullopt;
  }
  return Call(name, arguments.Take());
}

std::optional<ToolCall> ParseQwenCoderCall(std::string_view body, const OfferedTools& offered) {
  body = Trim(body);
  if (!Take(body, kFunction) || !body.ends_with(kFunctionEnd)) return std::nullopt;
  body.remove_suffix(kFunctionEnd.size());
  const auto name = TakeUntil(body, ">");
  if (!name.has_value()) return std::nullopt;
  Arguments arguments(Trim(*name), offered);
  for (body = Trim(body); !body.empty(); body = Trim(body)) {
    if (!Take(body, kParameter)) return std::nullopt;
    const auto key = TakeUntil(body, ">");
    if (!key.has_value()) return std::nullopt;
    const size_t end = EndOfParameter(body);
    if (end == std::string_view::npos) return std::nullopt;
    if (!arguments.Add(*key, WithoutLineEnds(body.substr(0, end)))) return std::nullopt;
    body.remove_prefix(end + kParameterEnd.size());
  }
  return Call(*name, arguments.Take());
}

bool GlmEndsInValue(std::string_view body) {
  const size_t at = body.rfind(kArgValue);
  return at != std::string_view::npos && body.find(kArgValueEnd, at) == std::string_view::npos;
}

bool QwenCoderEndsInValue(std::string_view body) {
  const size_t at = body.rfind(kParameter);
  return at != std::string_view::npos && EndOfParameter(body.substr(at)) == std::string_view::npos;
}

}  // namespace baton::chat

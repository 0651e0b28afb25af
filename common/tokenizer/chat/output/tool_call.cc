#include "common/tokenizer/chat/output/tool_call.h"

#include <algorithm>
#include <utility>

#include "common/json/parse_json.h"
#include "common/tokenizer/chat/output/tagged_calls.h"

namespace baton::chat {
namespace {

using Json = nlohmann::json;
using Calls = std::vector<ToolCall>;

// A call without mark shows itself within so many bytes.
constexpr size_t kBeginningBytes = 256;

// A member of an object, or with an empty key an element of a list: its text as it was written.
struct Part {
  std::string key;
  std::string_view value;
};

bool IsOpening(char c) { return c == '{' || c == '['; }

// The end of the value that `text`, which is JSON, begins with.
size_t EndOfValue(std::string_view text) {
  if (IsOpening(text.front())) return ValueScanner(false).End(text).value_or(text.size());
  if (text.front() != '"') return std::min(text.find_first_of(",]} \t\r\n"), text.size());
  size_t at = 1;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

// The parts of `text`, which is a JSON object or list.
std::vector<Part> PartsOf(std::string_view text) {
  std::vector<Part> parts;
  const bool is_object = text.front() == '{';
  size_t at = 1;
  const auto skip = [&](std::string_view bytes) {
    at = std::min(text.find_first_not_of(bytes, at), text.size());
  };
  for (skip(" \t\r\n,"); at + 1 < text.size(); skip(" \t\r\n,")) {
    Part part;
    if (is_object) {
      const size_t length = EndOfValue(text.substr(at));
      part.key = Json::parse(text.substr(at, length), nullptr, false).get<std::string>();
      at += length;
      skip(" \t\r\n:");
    }
    part.value = text.substr(at, EndOfValue(text.substr(at)));
    at += part.value.size();
    parts.push_back(std::move(part));
  }
  return parts;
}

std::string_view ValueOf(const std::vector<Part>& parts, std::string_view key) {
  const auto found =
      std::find_if(parts.rbegin(), parts.rend(), [&](const Part& part) { return part.key == key; });
  return found == parts.rend() ? std::string_view() : found->value;
}

bool IsObject(std::string_view text) {
  const auto parsed = ParseJson(text, "", DuplicateKeys::kKeepLast);
  return parsed.ok() && parsed->is_object();
}

std::optional<std::string> StringOf(std::string_view json) {
  if (json.empty() || json.front() != '"') return std::nullopt;
  const Json parsed = Json::parse(json, nullptr, false);
  if (!parsed.is_string()) return std::nullopt;
  return parsed.get<std::string>();
}

// Arguments as `json`, part of a valid document, has them: an object, a string that holds one,
// nothing.
std::optional<std::string> ArgumentsOf(std::string_view json) {
  if (json.empty() || json == "null") return "{}";
  if (json.front() == '{') return std::string(json);
  std::optional<std::string> inner = StringOf(json);
  if (inner.has_value() && inner->empty()) return "{}";
  if (!inner.has_value() || !IsObject(*inner)) return std::nullopt;
  return std::string(Trim(*inner));
}

bool IsName(std::string_view name) { return !name.empty() && name.size() <= kMaxNameBytes; }

std::optional<ToolCall> CallOf(std::string_view object) {
  if (object.empty() || object.front() != '{') return std::nullopt;
  std::vector<Part> parts = PartsOf(object);
  if (const std::string_view inner = ValueOf(parts, "function"); inner.starts_with('{')) {
    parts = PartsOf(inner);
  }
  std::optional<std::string> name = StringOf(ValueOf(parts, "name"));
  if (!name.has_value()) name = StringOf(ValueOf(parts, "function"));
  if (!name.has_value() || !IsName(*name)) return std::nullopt;
  std::string_view json = ValueOf(parts, "arguments");
  if (json.empty()) json = ValueOf(parts, "parameters");
  std::optional<std::string> arguments = ArgumentsOf(json);
  if (!arguments.has_value()) return std::nullopt;
  return ToolCall{"", *std::move(name), *std::move(arguments)};
}

// One object, or a list of them.
std::optional<Calls> JsonCalls(std::string_view text, bool may_be_list) {
  text = Trim(text);
  const auto parsed = ParseJson(text, "", DuplicateKeys::kKeepLast);
  if (!parsed.ok()) return std::nullopt;
  Calls calls;
  std::vector<Part> objects;
  if (parsed->is_array() && may_be_list) {
    objects = PartsOf(text);
  } else {
    objects.push_back({"", text});
  }
  for (const Part& object : objects) {
    std::optional<ToolCall> call = CallOf(object.value);
    if (!call.has_value()) return std::nullopt;
    calls.push_back(*std::move(call));
  }
  return calls;
}

std::optional<Calls> OneCall(std::string_view id, std::string_view name,
                             std::string_view arguments) {
  name = Trim(name);
  arguments = Trim(arguments);
  if (arguments.empty()) arguments = "{}";
  if (!IsName(name) || !IsObject(arguments)) return std::nullopt;
  return Calls{{std::string(id), std::string(name), std::string(arguments)}};
}

// Cuts `text` at the first `mark`; false if it has none.
bool Cut(std::string_view text, std::string_view mark, std::string_view& before,
         std::string_view& after) {
  const size_t at = text.find(mark);
  if (at == std::string_view::npos) return false;
  before = text.substr(0, at);
  after = text.substr(at + mark.size());
  return true;
}

// A list or an object, or since Mistral's version 11 the name: f[CALL_ID]abc[ARGS]{}.
std::optional<Calls> MistralCalls(std::string_view body) {
  body = Trim(body);
  if (!body.empty() && IsOpening(body.front()) && !body.starts_with("[ARGS]")) {
    return JsonCalls(body, /*may_be_list=*/true);
  }
  const size_t at = body.find('{');
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view name = body.substr(0, at);
  std::string_view rest;
  std::string_view id;
  Cut(name, "[ARGS]", name, rest);
  if (!Trim(rest).empty()) return std::nullopt;
  Cut(name, "[CALL_ID]", name, id);
  return OneCall(Trim(id), name, body.substr(at));
}

// V3: function<sep>f, then the arguments in a code block. V3.1: f<sep> and the arguments.
std::optional<Calls> DeepSeekCalls(std::string_view body) {
  constexpr std::string_view kBlock = "```";
  std::string_view left;
  std::string_view right;
  if (!Cut(body, "<｜tool▁sep｜>", left, right)) return std::nullopt;
  std::string_view name;
  std::string_view rest;
  if (Trim(left) != "function" || !Cut(right, kBlock, name, rest)) return OneCall("", left, right);
  if (rest.starts_with("json")) rest.remove_prefix(4);
  const size_t end = rest.rfind(kBlock);
  if (end == std::string_view::npos || !Trim(rest.substr(end + kBlock.size())).empty()) {
    return std::nullopt;
  }
  return OneCall("", name, rest.substr(0, end));
}

// The id is one of the conversation, which the template repeats: it names the function.
std::optional<Calls> KimiCalls(std::string_view body) {
  constexpr std::string_view kPrefix = "functions.";
  std::string_view id;
  std::string_view arguments;
  if (!Cut(body, "<|tool_call_argument_begin|>", id, arguments)) return std::nullopt;
  id = Trim(id);
  std::string_view name = id.substr(0, id.rfind(':'));
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  return OneCall(id, name, arguments);
}

std::optional<Calls> AsCalls(std::optional<ToolCall> call) {
  if (!call.has_value()) return std::nullopt;
  return Calls{*std::move(call)};
}

std::optional<Calls> ParseAny(ToolFormat format, std::string_view body,
                              const OfferedTools& offered) {
  switch (format) {
    case ToolFormat::kNone:
      return std::nullopt;
    case ToolFormat::kHermes:
    case ToolFormat::kLlama3:
      return JsonCalls(body, /*may_be_list=*/false);
    case ToolFormat::kJson:
      return JsonCalls(body, /*may_be_list=*/true);
    case ToolFormat::kPythonic:
      return ParsePythonCalls(body);
    case ToolFormat::kMistral:
      return MistralCalls(body);
    case ToolFormat::kDeepSeekV3:
      return DeepSeekCalls(body);
    case ToolFormat::kKimi:
      return KimiCalls(body);
    case ToolFormat::kGlm:
      return AsCalls(ParseGlmCall(body, offered));
    case ToolFormat::kQwenCoder:
      return AsCalls(ParseQwenCoderCall(body, offered));
  }
  return std::nullopt;
}

// The first key of a call, or its function's name, in `text`, which follows the bracket.
Plausible FirstKey(std::string_view text) {
  constexpr std::string_view kKeys[] = {"\"name\"", "\"type\"",       "\"function\"",
                                        "\"id\"",   "\"parameters\"", "\"arguments\""};
  for (const std::string_view key : kKeys) {
    if (text.starts_with(key)) return Plausible::kYes;
    if (key.starts_with(text)) return Plausible::kUnknown;
  }
  return Plausible::kNo;
}

Plausible FirstFunction(std::string_view text) {
  for (const char c : text) {
    if (c == '(') return text.front() == '(' ? Plausible::kNo : Plausible::kYes;
    const bool in_name = c == '_' || c == '.' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9');
    if (!in_name) return Plausible::kNo;
  }
  return Plausible::kUnknown;
}

std::string_view TrimLeft(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpaces), text.size()));
}

}  // namespace

std::string_view Trim(std::string_view text) {
  text = TrimLeft(text);
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

std::optional<std::vector<ToolCall>> ParseCalls(ToolFormat format, std::string_view body,
                                                const OfferedTools& offered, bool only_offered) {
  std::optional<Calls> calls = ParseAny(format, body, offered);
  if (!calls.has_value() || calls->empty()) return std::nullopt;
  const bool known = std::all_of(calls->begin(), calls->end(), [&](const ToolCall& call) {
    return offered.find(call.name) != offered.end();
  });
  if (only_offered && !known) return std::nullopt;
  return calls;
}

bool EndsInString(ToolFormat format, std::string_view body) {
  if (format == ToolFormat::kGlm) return GlmEndsInValue(body);
  if (format == ToolFormat::kQwenCoder) return QwenCoderEndsInValue(body);
  const size_t begin = body.find('{');
  if (begin == std::string_view::npos) return false;
  ValueScanner scanner(/*python=*/false);
  scanner.End(body.substr(begin));
  return scanner.in_string();
}

bool ShowsItsEnd(std::string_view body) {
  body = Trim(body);
  return body.ends_with('}') || body.ends_with("```") || body.ends_with("</function>");
}

Plausible MayBeCall(ToolFormat format, std::string_view beginning) {
  const bool all = beginning.size() >= kBeginningBytes;
  beginning = beginning.substr(0, kBeginningBytes);
  Plausible answer = Plausible::kUnknown;
  std::string_view inside = TrimLeft(beginning.substr(1));
  if (format == ToolFormat::kPythonic) {
    if (beginning.front() != '[') return Plausible::kNo;
    if (!inside.empty()) answer = FirstFunction(inside);
  } else {
    if (beginning.front() == '[' && format != ToolFormat::kJson) return Plausible::kNo;
    if (beginning.front() == '[' && !inside.empty()) {
      if (inside.front() != '{') return Plausible::kNo;
      inside = TrimLeft(inside.substr(1));
    }
    if (!inside.empty()) answer = FirstKey(inside);
  }
  return answer == Plausible::kUnknown && all ? Plausible::kNo : answer;
}

std::optional<size_t> ValueScanner::End(std::string_view text) {
  for (; seen_ < text.size(); ++seen_) {
    const char c = text[seen_];
    if (quote_ != 0) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == quote_) {
        quote_ = 0;
      }
    } else if (c == '"' || (python_ && c == '\'')) {
      quote_ = c;
    } else if (IsOpening(c) || (python_ && c == '(')) {
      ++depth_;
    } else if (c == '}' || c == ']' || (python_ && c == ')')) {
      if (--depth_ == 0) return ++seen_;
    }
  }
  return std::nullopt;
}

}  // namespace baton::chat

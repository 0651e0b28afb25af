// Filters that make text or numbers of one value.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/arguments.h"
#include "common/tokenizer/chat/jinja/builtins.h"
#include "common/tokenizer/chat/jinja/evaluator.h"
#include "common/tokenizer/chat/jinja/format.h"
#include "common/tokenizer/chat/jinja/json.h"
#include "common/tokenizer/chat/jinja/operations.h"
#include "common/tokenizer/chat/jinja/strings.h"

namespace baton::jinja {
namespace {

using Kind = Value::Kind;

constexpr int64_t kMaxIndent = 64;

absl::StatusOr<Value> ToJsonFilter(Evaluator& evaluator, const Value& input,
                                   const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(
      const BoundArguments bound,
      BoundArguments::Bind("tojson", arguments,
                           {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = bound.True(0, false);
  style.sort_keys = bound.True(3, false);
  if (bound[1].IsString()) {
    style.indent = bound[1].str();
  } else {
    BATON_ASSIGN_OR_RETURN(const std::optional<int64_t> indent, bound.Integer(1));
    if (indent.has_value()) {
      if (*indent > kMaxIndent) return absl::InvalidArgumentError("tojson(): indent is too large");
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(*indent, 0)), ' ');
    }
  }
  // As json.dumps: lines end without the space that follows a comma.
  if (style.indent.has_value()) style.item_separator = std::string(",");
  if (bound.Has(2) && !bound[2].Is(Kind::kNone)) {
    const Value& separators = bound[2];
    const bool two = separators.IsSequence() && separators.items().size() == 2 &&
                     separators.items()[0].IsString() && separators.items()[1].IsString();
    if (!two) return absl::InvalidArgumentError("tojson(): separators must be two strings");
    style.item_separator = separators.items()[0].str();
    style.key_separator = separators.items()[1].str();
  }
  BATON_ASSIGN_OR_RETURN(Text text, ToJson(input, style, evaluator.budget()));
  return MakeString(std::move(text), evaluator.budget());
}

// The string methods that are filters, too, for any value as text.
template <size_t kMethod>
absl::StatusOr<Value> ByMethod(Evaluator& evaluator, const Value& input,
                               const Arguments& arguments) {
  constexpr std::string_view kMethods[] = {"strip", "upper", "lower", "capitalize", "center"};
  BATON_ASSIGN_OR_RETURN(const Text text, Str(input, evaluator.budget()));
  if (kMethods[kMethod] == "center" && arguments.positional.empty() && arguments.named.empty()) {
    return CallStringMethod(evaluator, text, "center", Arguments{{Value::Int(80)}, {}});
  }
  return CallStringMethod(evaluator, text, kMethods[kMethod], arguments);
}

absl::StatusOr<Value> Title(Evaluator& evaluator, const Value& input, const Arguments&) {
  BATON_ASSIGN_OR_RETURN(const Text text, Str(input, evaluator.budget()));
  BATON_RETURN_IF_ERROR(evaluator.budget().Work(8 * text.size()));
  return MakeString(ChangeCase(text, Case::kJinjaTitle), evaluator.budget());
}

absl::StatusOr<Value> ReplaceFilter(Evaluator& evaluator, const Value& input,
                                    const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("replace", arguments, {"old", "new", "count"}, 2));
  BATON_ASSIGN_OR_RETURN(const Text text, Str(input, evaluator.budget()));
  Arguments as_text;
  for (size_t i = 0; i < 2; ++i) {
    BATON_ASSIGN_OR_RETURN(Text part, Str(bound[i], evaluator.budget()));
    as_text.positional.push_back(Value::String(std::move(part)));
  }
  BATON_ASSIGN_OR_RETURN(const int64_t count, bound.Integer(2, -1));
  as_text.positional.push_back(Value::Int(count));
  return CallStringMethod(evaluator, text, "replace", as_text);
}

absl::StatusOr<Value> StringFilter(Evaluator& evaluator, const Value& input, const Arguments&) {
  if (input.IsString()) return input;
  BATON_ASSIGN_OR_RETURN(Text text, Str(input, evaluator.budget()));
  return MakeString(std::move(text), evaluator.budget());
}

absl::StatusOr<Value> Escape(Evaluator& evaluator, const Value& input, const Arguments&) {
  BATON_ASSIGN_OR_RETURN(const Text text, Str(input, evaluator.budget()));
  const auto entity = [](char32_t c) -> std::string {
    return c == '&'    ? "&amp;"
           : c == '<'  ? "&lt;"
           : c == '>'  ? "&gt;"
           : c == '"'  ? "&#34;"
           : c == '\'' ? "&#39;"
                       : "";
  };
  Text escaped;
  AppendEscaped(text, entity, &escaped);
  return MakeString(std::move(escaped), evaluator.budget());
}

absl::StatusOr<Value> Format(Evaluator& evaluator, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const Text format, Str(input, evaluator.budget()));
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    return absl::InvalidArgumentError("format() takes values by position or by name, not both");
  }
  Dict named;
  for (const auto& [name, value] : arguments.named) named.Set(name, value);
  absl::StatusOr<Value> values = arguments.named.empty() ? Value::MakeTuple(arguments.positional)
                                                         : Value::MakeDict(std::move(named));
  BATON_RETURN_IF_ERROR(values.status());
  BATON_ASSIGN_OR_RETURN(Text text, FormatPercent(format, *values, evaluator.budget()));
  return MakeString(std::move(text), evaluator.budget());
}

absl::StatusOr<Value> Indent(Evaluator& evaluator, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("indent", arguments, {"width", "first", "blank"}));
  if (!input.IsString()) return BadOperands("+", input, Value::String(""));
  Text indention;
  if (bound[0].IsString()) {
    indention = bound[0].text();
  } else {
    BATON_ASSIGN_OR_RETURN(const int64_t width, bound.Integer(0, 4));
    if (width > 1000) return absl::InvalidArgumentError("indent(): width is too large");
    indention.Append(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '));
  }
  Text text = input.text();
  text.Append("\n");
  const std::vector<Text> lines = Lines(text, /*keep_ends=*/false);
  BATON_RETURN_IF_ERROR(evaluator.budget().Work(text.size() + lines.size() * indention.size()));
  Text indented;
  if (bound.True(1, false)) indented.Append(indention);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) indented.Append("\n");
    if (i > 0 && (bound.True(2, false) || !lines[i].empty())) indented.Append(indention);
    indented.Append(lines[i]);
  }
  return MakeString(std::move(indented), evaluator.budget());
}

absl::StatusOr<Value> UrlEncode(Evaluator& evaluator, const Value& input, const Arguments&) {
  BATON_ASSIGN_OR_RETURN(const Text text, Str(input, evaluator.budget()));
  Text encoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    const bool kept = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      std::string_view("_.-~/").find(c) != std::string_view::npos;
    char escape[4];
    std::snprintf(escape, sizeof(escape), "%%%02X", static_cast<unsigned>(static_cast<uint8_t>(c)));
    encoded.Append(kept ? std::string_view(&c, 1) : std::string_view(escape), text.OriginAt(i));
  }
  return MakeString(std::move(encoded), evaluator.budget());
}

// What float() makes of a string; none if it is no number.
std::optional<double> ParseFloat(const std::string& text) {
  std::string digits = text.substr(StripBegin(text));
  digits.resize(StripEnd(digits));
  if (digits.starts_with('+')) digits.erase(0, 1);
  if (digits.starts_with('+') || digits.find_first_of("xX(") != std::string::npos) {
    return std::nullopt;
  }
  double number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || read.ptr != digits.data() + digits.size()) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) number = std::strtod(digits.c_str(), nullptr);
  return number;
}

std::optional<int64_t> ParseInteger(const std::string& text, int base) {
  std::string digits = text.substr(StripBegin(text));
  digits.resize(StripEnd(digits));
  if (digits.starts_with('+')) digits.erase(0, 1);
  if (digits.starts_with('+') || digits.starts_with('_') || digits.ends_with('_')) {
    return std::nullopt;
  }
  if (digits.find("__") != std::string::npos) return std::nullopt;
  std::erase(digits, '_');
  if (base == 16 && (digits.starts_with("0x") || digits.starts_with("0X"))) digits.erase(0, 2);
  int64_t number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  if (digits.empty() || read.ec != std::errc() || read.ptr != digits.data() + digits.size()) {
    return std::nullopt;
  }
  return number;
}

absl::StatusOr<Value> Int(Evaluator&, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("int", arguments, {"default", "base"}));
  BATON_ASSIGN_OR_RETURN(const int64_t base, bound.Integer(1, 10));
  if (base < 2 || base > 36) return absl::InvalidArgumentError("int(): base must be from 2 to 36");
  if (input.IsUndefined()) return absl::InvalidArgumentError(input.why_undefined());
  const Value otherwise = bound.Has(0) ? bound[0] : Value::Int(0);
  std::optional<double> number;
  if (input.IsInteger()) return Value::Int(input.int_value());
  if (input.Is(Kind::kFloat)) number = input.float_value();
  if (input.IsString()) {
    if (const auto integer = ParseInteger(input.str(), static_cast<int>(base))) {
      return Value::Int(*integer);
    }
    number = ParseFloat(input.str());
  }
  if (!number.has_value() || !std::isfinite(*number)) return otherwise;
  if (std::abs(*number) >= 9.2e18) {
    return absl::InvalidArgumentError("an integer does not fit into 64 bits");
  }
  return Value::Int(static_cast<int64_t>(*number));
}

absl::StatusOr<Value> Float(Evaluator&, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("float", arguments, {"default"}));
  if (input.IsUndefined()) return absl::InvalidArgumentError(input.why_undefined());
  if (input.IsNumber()) return Value::Float(input.float_value());
  if (input.IsString()) {
    if (const std::optional<double> number = ParseFloat(input.str())) return Value::Float(*number);
  }
  return bound.Has(0) ? bound[0] : Value::Float(0);
}

absl::StatusOr<Value> Abs(Evaluator&, const Value& input, const Arguments&) {
  if (!input.IsNumber()) return BadOperands("abs", input, input);
  if (input.Is(Kind::kFloat)) return Value::Float(std::abs(input.float_value()));
  return input.int_value() < 0 ? Negate(input) : Value::Int(input.int_value());
}

absl::StatusOr<Value> Round(Evaluator&, const Value& input, const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind("round", arguments, {"precision", "method"}));
  if (!input.IsNumber()) return BadOperands("round", input, input);
  BATON_ASSIGN_OR_RETURN(const int64_t precision, bound.Integer(0, 0));
  BATON_ASSIGN_OR_RETURN(const Text method, bound.String(1, "common"));
  if (precision > 300 || precision < -300) {
    return absl::InvalidArgumentError("round(): precision must be from -300 to 300");
  }
  const double number = input.float_value();
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method.bytes() == "ceil") return Value::Float(std::ceil(number * scale) / scale);
  if (method.bytes() == "floor") return Value::Float(std::floor(number * scale) / scale);
  if (method.bytes() != "common") {
    return absl::InvalidArgumentError("round(): method must be common, ceil or floor");
  }
  if (input.IsInteger() && precision >= 0) return Value::Int(input.int_value());
  if (precision < 0) {
    const double rounded = std::nearbyint(number * scale) / scale;
    return input.IsInteger() ? Value::Int(static_cast<int64_t>(rounded)) : Value::Float(rounded);
  }
  char digits[700];
  std::snprintf(digits, sizeof(digits), "%.*f", static_cast<int>(precision), number);
  return Value::Float(std::strtod(digits, nullptr));
}

}  // namespace

Filter FindTextFilter(std::string_view name) {
  constexpr Named<Filter> kKnown[] = {
      {"tojson", ToJsonFilter},
      {"trim", ByMethod<0>},
      {"upper", ByMethod<1>},
      {"lower", ByMethod<2>},
      {"capitalize", ByMethod<3>},
      {"center", ByMethod<4>},
      {"title", Title},
      {"replace", ReplaceFilter},
      {"string", StringFilter},
      {"safe", StringFilter},
      {"escape", Escape},
      {"e", Escape},
      {"forceescape", Escape},
      {"format", Format},
      {"indent", Indent},
      {"urlencode", UrlEncode},
      {"int", Int},
      {"float", Float},
      {"abs", Abs},
      {"round", Round},
  };
  return FindNamed(kKnown, name);
}

}  // namespace baton::jinja

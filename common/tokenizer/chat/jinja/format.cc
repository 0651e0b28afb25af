#include "common/tokenizer/chat/jinja/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/operations.h"
#include "common/tokenizer/chat/jinja/strings.h"
#include "common/tokenizer/words/utf8.h"

namespace baton::jinja {
namespace {

constexpr int kMaxWidth = 1000;
constexpr int kMaxPrecision = 60;

// How one value is written.
struct Spec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '=' or none given.
  char sign = '-';
  bool alternate = false;
  bool thousands = false;
  int width = 0;
  int precision = -1;
  char type = 0;
};

absl::Status BadSpec(std::string_view what) {
  return absl::InvalidArgumentError(Concat("string format: ", what));
}

// Digits at `*at`; 0 if there are none.
absl::StatusOr<int> ReadNumber(std::string_view text, size_t* at, int most) {
  int number = 0;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') {
    number = number * 10 + (text[(*at)++] - '0');
    if (number > most) return BadSpec(Concat("a width or precision above ", most));
  }
  return number;
}

std::string WithThousands(std::string digits) {
  const size_t end = std::min(digits.find_first_of(".e%"), digits.size());
  for (size_t i = end; i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

// A number without its sign.
absl::StatusOr<std::string> Magnitude(const Value& value, const Spec& spec) {
  if (std::string_view("dxXo").find(spec.type) != std::string_view::npos) {
    int64_t integer = 0;
    if (value.IsInteger()) {
      integer = value.int_value();
    } else if (std::abs(value.float_value()) < 9e18) {
      integer = static_cast<int64_t>(value.float_value());
    } else {
      return BadSpec("a number that is too large");
    }
    const uint64_t magnitude =
        integer < 0 ? ~static_cast<uint64_t>(integer) + 1 : static_cast<uint64_t>(integer);
    char buffer[32];
    const char* format = spec.type == 'x'   ? "%lx"
                         : spec.type == 'X' ? "%lX"
                         : spec.type == 'o' ? "%lo"
                                            : "%lu";
    std::snprintf(buffer, sizeof(buffer), format, static_cast<unsigned long>(magnitude));
    const std::string_view prefix = !spec.alternate    ? ""
                                    : spec.type == 'x' ? "0x"
                                    : spec.type == 'X' ? "0X"
                                    : spec.type == 'o' ? "0o"
                                                       : "";
    return Concat(prefix, buffer);
  }
  double number = std::abs(value.float_value());
  if (spec.type == 0) return FloatRepr(number);
  const bool percent = spec.type == '%';
  if (percent) number *= 100;
  const char format[] = {'%', '.', '*', percent ? 'f' : spec.type, '\0'};
  char buffer[512];
  std::snprintf(buffer, sizeof(buffer), format, spec.precision < 0 ? 6 : spec.precision, number);
  return percent ? Concat(buffer, "%") : std::string(buffer);
}

// `body` filled up to the width; `signs` characters at its beginning stay in front for '='.
Text Padded(const Text& body, size_t signs, const Spec& spec, char default_align) {
  const auto missing = spec.width - LengthInCharacters(body.bytes());
  if (missing <= 0) return body;
  const char align = spec.align != 0 ? spec.align : default_align;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  Text padded;
  const auto fill = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) padded.Append(spec.fill);
  };
  const size_t head = align == '=' ? signs : 0;
  padded.AppendSlice(body, 0, head);
  fill(left);
  padded.AppendSlice(body, head, body.size());
  fill(missing - left);
  return padded;
}

absl::StatusOr<Text> FormatNumber(const Value& value, const Spec& spec) {
  if (!value.IsNumber()) {
    return BadSpec(
        Concat("%", std::string(1, spec.type), " needs a number, got ", TypeName(value)));
  }
  BATON_ASSIGN_OR_RETURN(std::string digits, Magnitude(value, spec));
  if (spec.thousands) digits = WithThousands(std::move(digits));
  const bool negative =
      value.Is(Value::Kind::kFloat) ? std::signbit(value.float_value()) : value.int_value() < 0;
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  return Padded(Text(sign + digits), sign.size(), spec, '>');
}

absl::StatusOr<Text> FormatText(Text text, const Spec& spec, char default_align) {
  if (spec.precision >= 0) {
    text = text.Slice(0, ByteOffset(text.bytes(), spec.precision));
  }
  return Padded(text, 0, spec, default_align);
}

absl::StatusOr<Text> AsText(const Value& value, bool repr, Budget& budget) {
  Text text;
  BATON_RETURN_IF_ERROR(repr ? AppendRepr(value, budget, &text) : AppendStr(value, budget, &text));
  return text;
}

// The values of one `format % values`.
class PercentFormatter {
 public:
  PercentFormatter(const Text& format, const Value& values, Budget& budget)
      : format_(format), bytes_(format.bytes()), values_(values), budget_(budget) {}

  absl::StatusOr<Text> Run() {
    size_t done = 0;
    for (size_t at = bytes_.find('%'); at != std::string::npos; at = bytes_.find('%', done)) {
      out_.AppendSlice(format_, done, at);
      done = at + 1;
      BATON_RETURN_IF_ERROR(budget_.Step());
      BATON_RETURN_IF_ERROR(Field(&done));
    }
    out_.AppendSlice(format_, done, bytes_.size());
    const bool takes_all = values_.Is(Value::Kind::kDict) || values_.Is(Value::Kind::kList);
    if (!takes_all && next_ < Count()) return BadSpec("not all arguments converted");
    return std::move(out_);
  }

 private:
  size_t Count() const { return values_.Is(Value::Kind::kTuple) ? values_.items().size() : 1; }

  absl::StatusOr<Value> Next() {
    if (next_ >= Count()) return BadSpec("not enough arguments");
    const size_t i = next_++;
    return values_.Is(Value::Kind::kTuple) ? values_.items()[i] : values_;
  }

  absl::StatusOr<std::optional<Value>> Named(size_t* at) {
    if (*at >= bytes_.size() || bytes_[*at] != '(') return std::optional<Value>();
    const size_t end = bytes_.find(')', *at);
    if (end == std::string::npos || !values_.Is(Value::Kind::kDict)) {
      return BadSpec("%(name) needs a dict");
    }
    const std::string name = bytes_.substr(*at + 1, end - *at - 1);
    *at = end + 1;
    const Value* value = values_.dict().Find(name);
    if (value == nullptr) return BadSpec(Concat("no value has the name '", name, "'"));
    return std::optional<Value>(*value);
  }

  absl::Status Field(size_t* at) {
    BATON_ASSIGN_OR_RETURN(std::optional<Value> value, Named(at));
    Spec spec;
    for (; *at < bytes_.size(); ++*at) {
      const char c = bytes_[*at];
      if (c == '-') {
        spec.align = '<';
        spec.fill = " ";
      } else if (c == '0' && spec.align == 0) {
        spec.align = '=';
        spec.fill = "0";
      } else if (c == '+' || (c == ' ' && spec.sign != '+')) {
        spec.sign = c;
      } else if (c == '#') {
        spec.alternate = true;
      } else if (c != '0' && c != ' ') {
        break;
      }
    }
    BATON_ASSIGN_OR_RETURN(spec.width, ReadNumber(bytes_, at, kMaxWidth));
    if (*at < bytes_.size() && bytes_[*at] == '.') {
      ++*at;
      BATON_ASSIGN_OR_RETURN(spec.precision, ReadNumber(bytes_, at, kMaxPrecision));
    }
    if (*at >= bytes_.size()) return BadSpec("the format ends within a field");
    spec.type = bytes_[(*at)++];
    if (spec.type == '%') {
      out_.Append("%");
      return absl::OkStatus();
    }
    if (!value.has_value()) {
      BATON_ASSIGN_OR_RETURN(value, Next());
    }
    return Write(*value, spec);
  }

  absl::Status Write(const Value& value, Spec& spec) {
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    if (spec.type == 's' || spec.type == 'r') {
      BATON_ASSIGN_OR_RETURN(Text text, AsText(value, spec.type == 'r', budget_));
      spec.fill = " ";
      if (spec.align == '=') spec.align = '>';
      BATON_ASSIGN_OR_RETURN(const Text padded, FormatText(std::move(text), spec, '>'));
      out_.Append(padded);
      return absl::OkStatus();
    }
    if (std::string_view("dxXoeEfFgG").find(spec.type) == std::string_view::npos) {
      return BadSpec(Concat("%", std::string(1, spec.type), " is not supported"));
    }
    BATON_ASSIGN_OR_RETURN(const Text number, FormatNumber(value, spec));
    out_.Append(number);
    return absl::OkStatus();
  }

  const Text& format_;
  const std::string& bytes_;
  const Value& values_;
  Budget& budget_;
  size_t next_ = 0;
  Text out_;
};

// What stands behind the colon of a field in braces.
absl::StatusOr<Spec> ReadBraceSpec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) {
    return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos;
  };
  const size_t first = text.empty() ? 0 : NextUtf8(text).length;
  if (first > 0 && is_align(first)) {
    spec.fill = std::string(text.substr(0, first));
    spec.align = text[first];
    at = first + 1;
  } else if (is_align(0)) {
    spec.align = text[at++];
  }
  const auto take = [&](char c) {
    const bool there = at < text.size() && text[at] == c;
    if (there) ++at;
    return there;
  };
  for (const char sign : {'+', '-', ' '}) {
    if (take(sign)) spec.sign = sign;
  }
  spec.alternate = take('#');
  if (take('0') && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  BATON_ASSIGN_OR_RETURN(spec.width, ReadNumber(text, &at, kMaxWidth));
  spec.thousands = take(',');
  if (take('.')) {
    BATON_ASSIGN_OR_RETURN(spec.precision, ReadNumber(text, &at, kMaxPrecision));
  }
  if (at < text.size()) spec.type = text[at++];
  const bool known =
      spec.type == 0 || std::string_view("sdxXoeEfFgG%").find(spec.type) != std::string_view::npos;
  if (at != text.size() || !known) return BadSpec(Concat("'", text, "' is not supported"));
  return spec;
}

absl::StatusOr<Text> FormatField(const Value& value, std::string_view conversion,
                                 std::string_view spec_text, Budget& budget) {
  BATON_ASSIGN_OR_RETURN(Spec spec, ReadBraceSpec(spec_text));
  if (!conversion.empty() && conversion != "s" && conversion != "r") {
    return BadSpec(Concat("!", conversion, " is not supported"));
  }
  const bool as_text = !conversion.empty() || !value.IsNumber() || spec_text.empty();
  if (as_text) {
    if (spec.type != 0 && spec.type != 's') {
      return BadSpec(Concat("'", spec_text, "' needs a number, got ", TypeName(value)));
    }
    BATON_ASSIGN_OR_RETURN(Text text, AsText(value, conversion == "r", budget));
    return FormatText(std::move(text), spec, '<');
  }
  if (spec.type == 0 && value.IsInteger()) spec.type = 'd';
  if (spec.type == 0 && spec.precision >= 0) spec.type = 'g';
  return FormatNumber(value, spec);
}

}  // namespace

absl::StatusOr<Text> FormatPercent(const Text& format, const Value& values, Budget& budget) {
  return PercentFormatter(format, values, budget).Run();
}

absl::StatusOr<Text> FormatBraces(const Text& format, const Arguments& values, Budget& budget) {
  const std::string& bytes = format.bytes();
  Text out;
  size_t next = 0;
  size_t done = 0;
  for (size_t at = bytes.find_first_of("{}"); at != std::string::npos;
       at = bytes.find_first_of("{}", done)) {
    BATON_RETURN_IF_ERROR(budget.Step());
    out.AppendSlice(format, done, at);
    if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
      out.AppendSlice(format, at, at + 1);
      done = at + 2;
      continue;
    }
    const size_t end = bytes.find('}', at);
    if (bytes[at] == '}' || end == std::string::npos) return BadSpec("a single brace");
    const std::string_view field = std::string_view(bytes).substr(at + 1, end - at - 1);
    const std::string_view head = field.substr(0, field.find(':'));
    const std::string_view spec = head.size() < field.size() ? field.substr(head.size() + 1) : "";
    const std::string_view name = head.substr(0, head.find('!'));
    const std::string_view conversion =
        name.size() < head.size() ? head.substr(name.size() + 1) : "";
    std::optional<Value> value;
    size_t index = 0;
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) {
      size_t digits = 0;
      if (name.empty()) {
        index = next++;
      } else {
        BATON_ASSIGN_OR_RETURN(const int number, ReadNumber(name, &digits, kMaxWidth));
        index = static_cast<size_t>(number);
      }
      if (digits == name.size() && index < values.positional.size()) {
        value = values.positional[index];
      }
    }
    for (const auto& [key, named] : values.named) {
      if (key == name) value = named;
    }
    if (!value.has_value()) return BadSpec(Concat("there is no value for {", name, "}"));
    BATON_ASSIGN_OR_RETURN(const Text text, FormatField(*value, conversion, spec, budget));
    out.Append(text);
    done = end + 1;
  }
  out.AppendSlice(format, done, bytes.size());
  return out;
}

}  // namespace baton::jinja

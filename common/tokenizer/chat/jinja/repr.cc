// str() and repr().
#include <unicode/uchar.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/format.h"
#include "common/tokenizer/chat/jinja/operations.h"
#include "common/tokenizer/chat/jinja/strings.h"

namespace baton::jinja {
namespace {

using Kind = Value::Kind;

bool IsPrintable(char32_t c) {
  constexpr uint32_t kNot = U_GC_C_MASK | U_GC_Z_MASK;
  return c == ' ' || (U_GET_GC_MASK(static_cast<UChar32>(c)) & kNot) == 0;
}

// What stands for a character in repr(); empty if it stands for itself.
std::string ReprEscape(char32_t c, char quote) {
  if (c == '\\') return "\\\\";
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (c == static_cast<char32_t>(quote)) return std::string("\\") + quote;
  if (IsPrintable(c)) return "";
  char escape[16];
  const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(escape, sizeof(escape), format, static_cast<unsigned>(c));
  return escape;
}

class ReprWriter {
 public:
  ReprWriter(Budget& budget, Text* out) : budget_(budget), out_(out) {}

  absl::Status Write(const Value& value) {
    BATON_RETURN_IF_ERROR(budget_.Step());
    switch (value.kind()) {
      case Kind::kString:
        BATON_RETURN_IF_ERROR(budget_.Work(value.text().size()));
        AppendQuoted(value.text(), out_);
        return absl::OkStatus();
      case Kind::kList:
        return Items(value.items(), "[", "]");
      case Kind::kTuple:
        return Items(value.items(), "(", value.items().size() == 1 ? ",)" : ")");
      case Kind::kDict:
        return Entries(value.dict());
      case Kind::kNamespace:
        return Variables(value.variables());
      case Kind::kUndefined:
        out_->Append("Undefined");
        return absl::OkStatus();
      default:
        return AppendStr(value, budget_, out_);
    }
  }

 private:
  absl::Status Items(const List& items, std::string_view open, std::string_view close) {
    out_->Append(open);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_->Append(", ");
      BATON_RETURN_IF_ERROR(Write(items[i]));
    }
    out_->Append(close);
    return absl::OkStatus();
  }

  absl::Status Entries(const Dict& dict) {
    out_->Append("{");
    for (size_t i = 0; i < dict.size(); ++i) {
      if (i > 0) out_->Append(", ");
      BATON_RETURN_IF_ERROR(Write(dict.entries()[i].key));
      out_->Append(": ");
      BATON_RETURN_IF_ERROR(Write(dict.entries()[i].value));
    }
    out_->Append("}");
    return absl::OkStatus();
  }

  // A namespace may hold itself.
  absl::Status Variables(const Namespace& variables) {
    if (++namespaces_ > 8) return absl::InvalidArgumentError("namespaces are nested too deep");
    out_->Append("<Namespace {");
    for (size_t i = 0; i < variables.variables.size(); ++i) {
      if (i > 0) out_->Append(", ");
      AppendQuoted(Text(variables.variables[i].first), out_);
      out_->Append(": ");
      BATON_RETURN_IF_ERROR(Write(variables.variables[i].second));
    }
    out_->Append("}>");
    --namespaces_;
    return absl::OkStatus();
  }

  Budget& budget_;
  Text* const out_;
  int namespaces_ = 0;
};

}  // namespace

void AppendQuoted(const Text& text, Text* out) {
  const std::string& bytes = text.bytes();
  const bool doubled =
      bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos;
  const char quote = doubled ? '"' : '\'';
  out->Append(std::string_view(&quote, 1));
  AppendEscaped(
      text, [quote](char32_t c) { return ReprEscape(c, quote); }, out);
  out->Append(std::string_view(&quote, 1));
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto written =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view spelled(buffer, static_cast<size_t>(written.ptr - buffer));
  const size_t e = spelled.find('e');
  const int exponent = std::atoi(std::string(spelled.substr(e + 1)).c_str());
  std::string digits(spelled.substr(0, e));
  const std::string sign = digits[0] == '-' ? "-" : "";
  digits.erase(0, sign.size());
  std::erase(digits, '.');
  const auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    if (count > 1) digits.insert(1, ".");
    std::snprintf(buffer, sizeof(buffer), "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return sign + digits + buffer;
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) {
    return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  }
  digits.insert(static_cast<size_t>(exponent) + 1, ".");
  return sign + digits;
}

absl::Status AppendRepr(const Value& value, Budget& budget, Text* text) {
  return ReprWriter(budget, text).Write(value);
}

absl::Status AppendStr(const Value& value, Budget& budget, Text* text) {
  switch (value.kind()) {
    case Kind::kUndefined:
      break;
    case Kind::kNone:
      text->Append("None");
      break;
    case Kind::kBool:
      text->Append(value.bool_value() ? "True" : "False");
      break;
    case Kind::kInt:
      text->Append(Concat(value.int_value()));
      break;
    case Kind::kFloat:
      text->Append(FloatRepr(value.float_value()));
      break;
    case Kind::kString:
      BATON_RETURN_IF_ERROR(budget.Work(value.text().size()));
      text->Append(value.text());
      break;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kNamespace:
      return AppendRepr(value, budget, text);
    case Kind::kCallable:
      text->Append(Concat("<function ", value.callable().name, ">"));
      break;
    case Kind::kLoop:
      text->Append(
          Concat("<LoopContext ", value.loop().index + 1, "/", value.loop().items->size(), ">"));
      break;
  }
  return absl::OkStatus();
}

absl::StatusOr<Text> Str(const Value& value, Budget& budget) {
  Text text;
  BATON_RETURN_IF_ERROR(AppendStr(value, budget, &text));
  return text;
}

}  // namespace baton::jinja

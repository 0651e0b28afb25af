// Strings, numbers and listed values of schemas.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/grammar/notations.h"
#include "common/grammar/schema_compiler.h"

namespace baton::grammar {
namespace {

using NodeId = Grammar::NodeId;
using Kind = JsonTree::Kind;

absl::Status ReadBounds(const SchemaView& view, bool integer, Bounds& bounds,
                        const SchemaPlace& at) {
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const JsonTree* value = view.Find(keyword);
    if (value == nullptr) continue;
    const std::string_view name = keyword;
    if (!value->Is(Kind::kNumber)) return at.Wrong(Concat(name, ": must be a number"));
    const bool lower = name == "minimum" || name == "exclusiveMinimum";
    bool exclusive = name.substr(0, 9) == "exclusive";
    double bound = value->number;
    if (!value->whole) {
      if (!integer) {
        return at.Wrong(Concat(name, ": must be an integer; others are not supported"));
      }
      exclusive = false;
      bound = lower ? std::ceil(bound) : std::floor(bound);
    }
    const auto whole = static_cast<int64_t>(std::clamp(bound, -9e17, 9e17));
    std::optional<int64_t>& of = lower ? bounds.least : bounds.most;
    bool& out = lower ? bounds.above_least : bounds.below_most;
    const bool tighter = !of || (lower ? whole > *of : whole < *of) || (whole == *of && exclusive);
    if (tighter) {
      of = value->whole && std::abs(value->number) < 9e17 ? value->integer : whole;
      out = exclusive;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> CountOf(const SchemaView& view, const char* keyword, int absent,
                            const SchemaPlace& at) {
  const JsonTree* value = view.Find(keyword);
  if (value == nullptr) return absent;
  if (!value->Is(Kind::kNumber) || !value->whole || value->integer < 0) {
    return at.Wrong(Concat(keyword, ": must be an integer from 0 on"));
  }
  if (value->integer > kMaxCount) {
    return at.Wrong(absl::StrCat(keyword, ": more than ", kMaxCount, " is not supported"));
  }
  return static_cast<int>(value->integer);
}

absl::Status CheckOrder(int least, int most, const char* of, const SchemaPlace& at) {
  if (most == kUnbounded || least <= most) return absl::OkStatus();
  return at.Wrong(Concat("the least ", of, " is greater than the most"));
}

absl::StatusOr<NodeId> SchemaCompiler::Listed(const SchemaView& view, const SchemaPlace& at) {
  if (at.spelling == Spelling::kArguments) {
    return at.Wrong("enum and const of all arguments are not supported");
  }
  for (const auto& [name, value] : view.members()) {
    if (*name == "enum" || *name == "const" || *name == "type" || *name == "nullable") continue;
    if (*name == "format") continue;
    return at.Wrong(Concat(*name, " beside enum or const is not supported"));
  }
  const JsonTree* const only = view.Find("const");
  const JsonTree* const list = view.Find("enum");
  if (list != nullptr && !list->Is(Kind::kArray)) return at.Wrong("enum: must be a list");
  absl::StatusOr<uint32_t> types = TypesOf(view);
  if (!types.ok()) return at.Wrong(std::string(types.status().message()));
  const auto fits = [&](const JsonTree& value) { return (TypeOf(value) & *types) != 0; };
  std::vector<NodeId> ways;
  if (only != nullptr) {
    const bool listed = list == nullptr || std::find(list->items.begin(), list->items.end(),
                                                     *only) != list->items.end();
    if (listed && fits(*only)) ways.push_back(Constant(*only, at.spelling));
  } else {
    for (const JsonTree& value : list->items) {
      if (fits(value)) ways.push_back(Constant(value, at.spelling));
    }
  }
  if (ways.empty()) return at.Wrong("no value is allowed");
  return grammar_.Choice(std::move(ways));
}

NodeId SchemaCompiler::Constant(const JsonTree& value, Spelling spelling) {
  if (spelling == Spelling::kJson) return rules_.Constant(value);
  const bool can_stand = value.Is(Kind::kString) && arguments_->MayBeBare(value.text);
  return can_stand ? grammar_.Text(value.text) : grammar_.Chars({});
}

absl::StatusOr<NodeId> SchemaCompiler::String(const SchemaView& view, const SchemaPlace& at) {
  BATON_ASSIGN_OR_RETURN(const int least, CountOf(view, "minLength", 0, at));
  BATON_ASSIGN_OR_RETURN(const int most, CountOf(view, "maxLength", kUnbounded, at));
  BATON_RETURN_IF_ERROR(CheckOrder(least, most, "length", at));
  const bool sized = least > 0 || most != kUnbounded;
  const JsonTree* const pattern = view.Find("pattern");
  const JsonTree* const format = view.Find("format");
  if (pattern != nullptr) {
    if (!pattern->Is(Kind::kString)) return at.Wrong("pattern: must be a string");
    if (sized) return at.Wrong("pattern beside minLength or maxLength is not supported");
    return Pattern(pattern->text, at.Way("pattern"));
  }
  if (format == nullptr) return StringOf(least, most, at.spelling);
  if (!format->Is(Kind::kString)) return at.Wrong("format: must be a string");
  const auto known = JsonRules::PatternOfFormat(format->text);
  if (!known) return StringOf(least, most, at.spelling);
  if (sized) return at.Wrong("format beside minLength or maxLength is not supported");
  return Pattern(*known, at.Way("format"));
}

NodeId SchemaCompiler::StringOf(int least, int most, Spelling spelling) {
  if (spelling == Spelling::kJson) return rules_.StringOf(least, most);
  if (least == 0 && most == kUnbounded) return arguments_->BareText();
  return grammar_.Repeat(arguments_->BareChars(kAnyChar), least, most);
}

absl::StatusOr<NodeId> SchemaCompiler::Pattern(std::string_view pattern, const SchemaPlace& at) {
  const bool json = at.spelling == Spelling::kJson;
  const RegexChars chars = [&](CodeRanges ranges) {
    return json ? rules_.Chars(std::move(ranges)) : arguments_->BareChars(ranges);
  };
  absl::StatusOr<NodeId> inside = AddPattern(pattern, chars, grammar_);
  if (!inside.ok()) return at.Wrong(std::string(inside.status().message()));
  return json ? rules_.Quoted(*inside) : *inside;
}

absl::StatusOr<NodeId> SchemaCompiler::Number(const SchemaView& view, bool integer,
                                              const SchemaPlace& at) {
  Bounds bounds;
  BATON_RETURN_IF_ERROR(ReadBounds(view, integer, bounds, at));
  if (const JsonTree* step = view.Find("multipleOf")) {
    const bool plain = integer && step->Is(Kind::kNumber) && step->number == 1;
    if (!plain) return at.Wrong("multipleOf is not supported");
  }
  if (!bounds.least && !bounds.most) return integer ? rules_.Integer() : rules_.Number();
  return integer ? rules_.IntegerIn(bounds) : rules_.NumberIn(bounds);
}

}  // namespace baton::grammar

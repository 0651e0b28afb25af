#include "common/grammar/argument_rules.h"

#include <algorithm>
#include <utility>

namespace baton::grammar {
namespace {

using NodeId = Grammar::NodeId;

constexpr std::string_view kArgValueEnd = "</arg_value>";
constexpr std::string_view kParameterEnd = "</parameter>";

bool IsNameByte(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

absl::Status ArgumentRules::CheckName(std::string_view name) const {
  const auto fits = [&] {
    if (name.empty()) return false;
    if (python()) return std::all_of(name.begin(), name.end(), IsNameByte);
    return !IsSpace(name.front()) && !IsSpace(name.back()) &&
           name.find_first_of("<>\r\n") == std::string_view::npos;
  };
  if (fits()) return absl::OkStatus();
  return absl::InvalidArgumentError("the model's format of calls has no arguments of this name");
}

NodeId ArgumentRules::AnyMember(NodeId value) {
  const CodeRanges letters = {{'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  CodeRanges more = letters;
  more.push_back({'0', '9'});
  return Tagged(grammar_.Sequence({grammar_.Chars(letters),
                                   grammar_.Repeat(grammar_.Chars(std::move(more)), 0, 63)}),
                value);
}

NodeId ArgumentRules::Tagged(NodeId name, NodeId value) {
  const auto line_end = [&] { return grammar_.Optional(grammar_.Text("\n")); };
  switch (spelling_.kind) {
    case ArgumentSpelling::Kind::kKeywords:
      break;
    case ArgumentSpelling::Kind::kArgTags:
      return grammar_.Sequence({grammar_.SpecialToken("<arg_key>"), name,
                                grammar_.SpecialToken("</arg_key>"), line_end(),
                                grammar_.SpecialToken("<arg_value>"), value,
                                grammar_.SpecialToken(kArgValueEnd), line_end()});
    case ArgumentSpelling::Kind::kParameterTags:
      return grammar_.Sequence({grammar_.SpecialToken("<parameter="), name, grammar_.Text(">\n"),
                                value, grammar_.Text("\n"), grammar_.SpecialToken(kParameterEnd),
                                grammar_.Text("\n")});
  }
  return grammar_.Sequence({name, grammar_.Text("="), value});
}

std::string_view ArgumentRules::EndMark() const {
  return spelling_.kind == ArgumentSpelling::Kind::kArgTags ? kArgValueEnd : kParameterEnd;
}

NodeId ArgumentRules::BareText() { return grammar_.Without(EndMark()); }

NodeId ArgumentRules::BareChars(const CodeRanges& ranges) {
  CodeRanges others = Complement(ranges);
  others.push_back({'<', '<'});
  return grammar_.Chars(Complement(others));
}

bool ArgumentRules::MayBeBare(std::string_view text) const {
  return text.find(EndMark()) == std::string_view::npos;
}

}  // namespace baton::grammar

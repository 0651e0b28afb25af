#include "common/grammar/json_rules.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "common/grammar/utf8_ranges.h"

namespace baton::grammar {
namespace {

using NodeId = Grammar::NodeId;

constexpr int kIndent = 20;
constexpr int kMaxDigits = 18;
constexpr int64_t kLargest = 999'999'999'999'999'999;

const CodeRanges kDigit = {{'0', '9'}};
const CodeRanges kHex = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};

}  // namespace

NodeId JsonRules::Space() {
  if (space_ < 0) {
    space_ = grammar_.AddRule("white space");
    const NodeId indent = grammar_.Repeat(grammar_.Chars({{' ', ' '}}), 0, kIndent);
    const NodeId line = grammar_.Sequence({grammar_.Text("\n"), indent});
    grammar_.Define(space_, grammar_.Optional(grammar_.Choice({grammar_.Text(" "), line})));
  }
  return grammar_.Call(space_);
}

NodeId JsonRules::Comma() { return grammar_.Sequence({grammar_.Text(","), Space()}); }

NodeId JsonRules::Member(NodeId quoted_key, NodeId value) {
  return grammar_.Sequence({quoted_key, grammar_.Text(":"), Space(), value});
}

NodeId JsonRules::Enclosed(std::string_view open, NodeId inside, std::string_view close,
                           bool may_be_empty) {
  NodeId content = grammar_.Sequence({inside, Space()});
  if (may_be_empty) content = grammar_.Optional(content);
  return grammar_.Sequence({grammar_.Text(open), Space(), content, grammar_.Text(close)});
}

NodeId JsonRules::Value() {
  if (value_ < 0) {
    value_ = grammar_.AddRule("a JSON value");
    grammar_.Define(value_,
                    grammar_.Choice({Object(), Array(), String(), Number(), Boolean(), Null()}));
  }
  return grammar_.Call(value_);
}

NodeId JsonRules::Object() {
  if (object_ < 0) {
    object_ = grammar_.AddRule("a JSON object");
    const NodeId first = Member(String(), Value());
    const NodeId more = grammar_.Sequence({Comma(), Member(String(), Value())});
    const NodeId members = grammar_.Sequence({first, grammar_.Repeat(more, 0, kUnbounded)});
    grammar_.Define(object_, Enclosed("{", members, "}", true));
  }
  return grammar_.Call(object_);
}

NodeId JsonRules::Array() {
  if (array_ < 0) {
    array_ = grammar_.AddRule("a JSON array");
    const NodeId more = grammar_.Sequence({Comma(), Value()});
    const NodeId items = grammar_.Sequence({Value(), grammar_.Repeat(more, 0, kUnbounded)});
    grammar_.Define(array_, Enclosed("[", items, "]", true));
  }
  return grammar_.Call(array_);
}

NodeId JsonRules::Quoted(NodeId inside) {
  return grammar_.Sequence({grammar_.Text("\""), inside, grammar_.Text("\"")});
}

NodeId JsonRules::String() {
  if (python_) return StringOf(0, kUnbounded);  // Python joins no surrogates.
  if (string_ < 0) {
    string_ = grammar_.AddRule("a JSON string");
    const NodeId hex = grammar_.Chars(kHex);
    const auto escape = [&](std::vector<NodeId> digits) {
      digits.insert(digits.begin(), grammar_.Text("\\u"));
      return grammar_.Sequence(std::move(digits));
    };
    const NodeId d = grammar_.Chars({{'D', 'D'}, {'d', 'd'}});
    const NodeId not_d =
        grammar_.Chars({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}});
    const NodeId low_digit = grammar_.Chars({{'0', '7'}});
    const NodeId high = escape({d, grammar_.Chars({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), hex, hex});
    const NodeId low = escape({d, grammar_.Chars({{'C', 'F'}, {'c', 'f'}}), hex, hex});
    const NodeId character =
        grammar_.Choice({Chars(kAnyChar), escape({not_d, hex, hex, hex}),
                         escape({d, low_digit, hex, hex}), grammar_.Sequence({high, low})});
    grammar_.Define(string_, Quoted(grammar_.Repeat(character, 0, kUnbounded)));
  }
  return grammar_.Call(string_);
}

NodeId JsonRules::StringOf(int least, int most) {
  if (least == 0 && most == kUnbounded && !python_) return String();
  return Quoted(grammar_.Repeat(Chars(kAnyChar), least, most));
}

NodeId JsonRules::Fraction() {
  return grammar_.Sequence(
      {grammar_.Text("."), grammar_.Repeat(grammar_.Chars(kDigit), 1, kMaxDigits)});
}

NodeId JsonRules::PositiveFraction() {
  return grammar_.Sequence({grammar_.Text("."),
                            grammar_.Repeat(grammar_.Chars(kDigit), 0, kMaxDigits - 1),
                            grammar_.Chars({{'1', '9'}})});
}

NodeId JsonRules::Integer() {
  if (integer_ < 0) {
    integer_ = grammar_.AddRule("an integer");
    grammar_.Define(integer_, IntegerIn({}));
  }
  return grammar_.Call(integer_);
}

NodeId JsonRules::Number() {
  if (number_ < 0) {
    number_ = grammar_.AddRule("a number");
    const NodeId sign = grammar_.Optional(grammar_.Chars({{'+', '+'}, {'-', '-'}}));
    const NodeId exponent = grammar_.Sequence({grammar_.Chars({{'E', 'E'}, {'e', 'e'}}), sign,
                                               grammar_.Repeat(grammar_.Chars(kDigit), 1, 2)});
    grammar_.Define(number_, grammar_.Sequence({Integer(), grammar_.Optional(Fraction()),
                                                grammar_.Optional(exponent)}));
  }
  return grammar_.Call(number_);
}

NodeId JsonRules::Digits(const std::string& low, const std::string& high) {
  if (low == high) return grammar_.Text(low);
  const auto digit = [&](char first, char last) {
    return grammar_.Chars({{static_cast<uint32_t>(first), static_cast<uint32_t>(last)}});
  };
  if (low.size() == 1) return digit(low[0], high[0]);
  const std::string low_rest = low.substr(1);
  const std::string high_rest = high.substr(1);
  const std::string zeros(low_rest.size(), '0');
  const std::string nines(low_rest.size(), '9');
  if (low[0] == high[0]) {
    return grammar_.Sequence({digit(low[0], low[0]), Digits(low_rest, high_rest)});
  }
  std::vector<NodeId> ways;
  char first = low[0];
  char last = high[0];
  if (low_rest != zeros) {
    ways.push_back(grammar_.Sequence({digit(first, first), Digits(low_rest, nines)}));
    ++first;
  }
  if (high_rest != nines) {
    ways.push_back(grammar_.Sequence({digit(last, last), Digits(zeros, high_rest)}));
    --last;
  }
  if (first <= last) {
    const int rest = static_cast<int>(low_rest.size());
    ways.push_back(grammar_.Sequence(
        {digit(first, last), grammar_.Repeat(grammar_.Chars(kDigit), rest, rest)}));
  }
  return grammar_.Choice(std::move(ways));
}

NodeId JsonRules::NaturalIn(int64_t low, int64_t high) {
  std::vector<NodeId> ways;
  for (int digits = 1; digits <= kMaxDigits; ++digits) {
    int64_t smallest = 1;
    for (int i = 1; i < digits; ++i) smallest *= 10;
    const int64_t largest = smallest * 10 - 1;
    const int64_t from = std::max(low, digits == 1 ? 0 : smallest);
    const int64_t to = std::min(high, largest);
    if (from > to) continue;
    // All longer ones in one.
    if (from == smallest && high >= kLargest) {
      ways.push_back(
          grammar_.Sequence({grammar_.Chars({{'1', '9'}}),
                             grammar_.Repeat(grammar_.Chars(kDigit), digits - 1, kMaxDigits - 1)}));
      break;
    }
    ways.push_back(Digits(std::to_string(from), std::to_string(to)));
  }
  return ways.empty() ? Nothing() : grammar_.Choice(std::move(ways));
}

NodeId JsonRules::IntegerIn(const Bounds& bounds) {
  const int64_t least =
      std::max(bounds.least.value_or(-kLargest), -kLargest) + (bounds.above_least ? 1 : 0);
  const int64_t most =
      std::min(bounds.most.value_or(kLargest), kLargest) - (bounds.below_most ? 1 : 0);
  if (least > most) return Nothing();
  std::vector<NodeId> ways;
  if (most >= 0) ways.push_back(NaturalIn(std::max<int64_t>(least, 0), most));
  if (least < 0) {
    const int64_t smallest = most < 0 ? -most : 1;
    ways.push_back(grammar_.Sequence({grammar_.Text("-"), NaturalIn(smallest, -least)}));
  }
  return grammar_.Choice(std::move(ways));
}

// Numbers from `low` to `high`, not negative, without exponent.
NodeId JsonRules::DecimalIn(int64_t low, int64_t high, bool above_low, bool below_high) {
  std::vector<NodeId> ways;
  const auto point_zeros = [&] {
    return grammar_.Optional(grammar_.Sequence(
        {grammar_.Text("."), grammar_.Repeat(grammar_.Chars({{'0', '0'}}), 1, kMaxDigits)}));
  };
  if (low < high) {
    const int64_t whole_low = low + (above_low ? 1 : 0);
    if (whole_low < high) {
      ways.push_back(
          grammar_.Sequence({NaturalIn(whole_low, high - 1), grammar_.Optional(Fraction())}));
    }
    if (above_low) {
      ways.push_back(grammar_.Sequence({grammar_.Text(std::to_string(low)), PositiveFraction()}));
    }
  }
  if (high >= kLargest) {  // There is no bound.
    ways.push_back(grammar_.Sequence(
        {grammar_.Text(std::to_string(kLargest)), grammar_.Optional(Fraction())}));
  } else if (!below_high && (low < high || !above_low)) {
    ways.push_back(grammar_.Sequence({grammar_.Text(std::to_string(high)), point_zeros()}));
  }
  return ways.empty() ? Nothing() : grammar_.Choice(std::move(ways));
}

NodeId JsonRules::NumberIn(const Bounds& bounds) {
  const int64_t least = std::max(bounds.least.value_or(-kLargest), -kLargest);
  const int64_t most = std::min(bounds.most.value_or(kLargest), kLargest);
  if (least > most) return Nothing();
  std::vector<NodeId> ways;
  if (most >= 0) {
    ways.push_back(DecimalIn(std::max<int64_t>(least, 0), most, least >= 0 && bounds.above_least,
                             bounds.below_most));
  }
  if (least < 0) {
    // -0 is 0, which a bound of 0 may leave out.
    const int64_t low = most < 0 ? -most : 0;
    const bool above = most < 0 ? bounds.below_most : true;
    ways.push_back(
        grammar_.Sequence({grammar_.Text("-"), DecimalIn(low, -least, above, bounds.above_least)}));
  }
  return grammar_.Choice(std::move(ways));
}

// A trie of the names: a key may leave it anywhere, and end where no name does.
NodeId JsonRules::KeyBut(const std::vector<std::string>& taken) {
  struct Node {
    std::map<uint32_t, size_t> next;
    bool ends = false;
  };
  std::vector<Node> nodes(1);
  for (const std::string& name : taken) {
    size_t at = 0;
    for (const char32_t c : ToCodePoints(name)) {
      const auto [it, added] = nodes[at].next.try_emplace(c, nodes.size());
      at = it->second;
      if (added) nodes.emplace_back();
    }
    nodes[at].ends = true;
  }
  const CodeRanges not_plain = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  const int free = grammar_.AddRule("the rest of a key");
  grammar_.Define(free, grammar_.Sequence(
                            {grammar_.Repeat(grammar_.Chars(Complement(not_plain)), 0, kUnbounded),
                             grammar_.Text("\"")}));
  std::vector<int> rules;
  for (size_t i = 0; i < nodes.size(); ++i) rules.push_back(grammar_.AddRule("a key"));
  for (size_t i = 0; i < nodes.size(); ++i) {
    CodeRanges others = not_plain;
    std::vector<NodeId> ways;
    for (const auto& [c, next] : nodes[i].next) {
      others.push_back({c, c});
      if (c < 0x20 || c == '"' || c == '\\') continue;
      ways.push_back(grammar_.Sequence({grammar_.Chars({{c, c}}), grammar_.Call(rules[next])}));
    }
    ways.push_back(grammar_.Sequence({grammar_.Chars(Complement(others)), grammar_.Call(free)}));
    if (!nodes[i].ends) ways.push_back(grammar_.Text("\""));
    grammar_.Define(rules[i], grammar_.Choice(std::move(ways)));
  }
  return grammar_.Sequence({grammar_.Text("\""), grammar_.Call(rules[0])});
}

std::optional<std::string_view> JsonRules::PatternOfFormat(std::string_view format) {
  const auto text = [](const std::string& pattern) { return new std::string(pattern); };
  const std::string date =
      "([12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
      "02-(0[1-9]|1[0-9]|2[0-8]))|[12][0-9](0[48]|[2468][048]|[13579][26])-02-29)";
  const std::string time =
      R"(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-)"
      R"(5][0-9]))";
  static const auto* const kDate = text("^" + date + "$");
  static const auto* const kTime = text("^" + time + "$");
  static const auto* const kDateTime = text("^" + date + "T" + time + "$");
  static constexpr std::string_view kLabel = "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?";
  static const auto* const kHost =
      new std::string("^" + std::string(kLabel) + "(\\." + std::string(kLabel) + "){0,4}$");
  static const auto* const kEmail =
      new std::string("^[A-Za-z0-9_+-]{1,24}(\\.[A-Za-z0-9_+-]{1,24}){0,2}@" + std::string(kLabel) +
                      "(\\." + std::string(kLabel) + "){1,3}$");
  static constexpr std::string_view kIpv4 =
      R"(^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1)"
      R"(-9]?[0-9])$)";
  static constexpr std::string_view kIpv6 = R"(^([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$)";
  static constexpr std::string_view kUuid =
      R"(^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$)";
  static constexpr std::string_view kDuration =
      R"(^P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?)?|T[0-9]{1,4}H([)"
      R"(0-9]{1,4}M([0-9]{1,4}S)?)?|T[0-9]{1,4}M([0-9]{1,4}S)?|T[0-9]{1,4}S)$)";
  static constexpr std::string_view kUri =
      R"(^[a-z][a-z0-9+.-]{0,15}://[A-Za-z0-9]([A-Za-z0-9.-]{0,60}[A-Za-z0-9])?(:[0-9]{1,4})?)"
      R"((/[A-Za-z0-9._~!$&'()*+,;=:@-]{0,64}){0,16}(\?[A-Za-z0-9._~!$&'()*+,;=:@/-]{0,128})?)"
      R"($)";
  static const auto* const known = new std::map<std::string_view, std::string_view>{
      {"date", *kDate},        {"time", *kTime}, {"date-time", *kDateTime}, {"email", *kEmail},
      {"ipv4", kIpv4},         {"ipv6", kIpv6},  {"uuid", kUuid},           {"hostname", *kHost},
      {"duration", kDuration}, {"uri", kUri}};
  const auto it = known->find(format);
  return it == known->end() ? std::nullopt : std::optional(it->second);
}

NodeId JsonRules::Constant(const JsonTree& value) {
  std::vector<NodeId> parts;
  switch (value.kind) {
    case JsonTree::Kind::kNull:
      return Null();
    case JsonTree::Kind::kBool:
      return Truth(value.truth);
    case JsonTree::Kind::kNumber:
      return grammar_.Text(value.text);
    case JsonTree::Kind::kString:
      return grammar_.Text(JsonQuoted(value.text));
    case JsonTree::Kind::kArray:
      for (const JsonTree& item : value.items) {
        if (!parts.empty()) parts.push_back(Comma());
        parts.push_back(Constant(item));
      }
      if (parts.empty()) return grammar_.Text("[]");
      return Enclosed("[", grammar_.Sequence(std::move(parts)), "]", false);
    case JsonTree::Kind::kObject:
      for (const auto& [key, item] : value.members) {
        if (!parts.empty()) parts.push_back(Comma());
        parts.push_back(Member(grammar_.Text(JsonQuoted(key)), Constant(item)));
      }
      if (parts.empty()) return grammar_.Text("{}");
      return Enclosed("{", grammar_.Sequence(std::move(parts)), "}", false);
  }
  return Null();
}

}  // namespace baton::grammar

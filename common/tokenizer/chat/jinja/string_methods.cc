// Python's methods of str.
#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/arguments.h"
#include "common/tokenizer/chat/jinja/builtins.h"
#include "common/tokenizer/chat/jinja/evaluator.h"
#include "common/tokenizer/chat/jinja/format.h"
#include "common/tokenizer/chat/jinja/operations.h"
#include "common/tokenizer/chat/jinja/strings.h"
#include "common/tokenizer/words/utf8.h"

namespace baton::jinja {
namespace {

using Method = absl::StatusOr<Value> (*)(Evaluator&, const Text&, std::string_view name,
                                         const Arguments&);

absl::StatusOr<Value> Strings(std::vector<Text> parts, Budget& budget) {
  List items;
  items.reserve(parts.size());
  for (Text& part : parts) {
    BATON_ASSIGN_OR_RETURN(Value item, MakeString(std::move(part), budget));
    items.push_back(std::move(item));
  }
  return MakeList(std::move(items), budget);
}

// Words between white space.
std::vector<Text> SplitWords(const Text& text, int64_t most, bool from_right) {
  const std::string_view bytes = text.bytes();
  std::vector<Text> words;
  size_t begin = StripBegin(bytes);
  size_t end = std::max(begin, StripEnd(bytes));
  const auto is_space_at = [&](size_t at) {
    return IsPythonSpace(NextUtf8(bytes.substr(at)).code_point);
  };
  while (begin < end) {
    if (most >= 0 && static_cast<int64_t>(words.size()) == most) {
      words.push_back(text.Slice(from_right ? 0 : begin, from_right ? end : bytes.size()));
      break;
    }
    if (from_right) {
      size_t at = end;
      while (at > begin) {
        const size_t before = LastCharacter(bytes.substr(0, at));
        if (is_space_at(before)) break;
        at = before;
      }
      words.push_back(text.Slice(at, end));
      end = std::max(begin, StripEnd(bytes.substr(0, at)));
      if (at == begin) break;
    } else {
      size_t at = begin;
      while (at < end && !is_space_at(at)) at += NextUtf8(bytes.substr(at)).length;
      words.push_back(text.Slice(begin, at));
      begin = at + StripBegin(bytes.substr(at));
    }
  }
  if (from_right) std::reverse(words.begin(), words.end());
  return words;
}

std::vector<Text> SplitBy(const Text& text, const std::string& separator, int64_t most,
                          bool from_right) {
  std::vector<Text> parts;
  size_t begin = 0;
  size_t end = text.size();
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    if (from_right) {
      if (end < separator.size()) break;
      const size_t at = text.bytes().rfind(separator, end - separator.size());
      if (at == std::string::npos) break;
      parts.push_back(text.Slice(at + separator.size(), end));
      end = at;
    } else {
      const size_t at = text.bytes().find(separator, begin);
      if (at == std::string::npos) break;
      parts.push_back(text.Slice(begin, at));
      begin = at + separator.size();
    }
  }
  parts.push_back(text.Slice(begin, end));
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

absl::StatusOr<Value> Split(Evaluator& evaluator, const Text& text, std::string_view name,
                            const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind(name, arguments, {"sep", "maxsplit"}));
  BATON_ASSIGN_OR_RETURN(const int64_t most, bound.Integer(1, -1));
  const bool from_right = name == "rsplit";
  BATON_RETURN_IF_ERROR(evaluator.budget().Work(text.size()));
  if (!bound.Has(0) || bound[0].Is(Value::Kind::kNone)) {
    return Strings(SplitWords(text, most, from_right), evaluator.budget());
  }
  BATON_ASSIGN_OR_RETURN(const Text separator, bound.String(0));
  if (separator.empty()) return absl::InvalidArgumentError("empty separator");
  return Strings(SplitBy(text, separator.bytes(), most, from_right), evaluator.budget());
}

absl::StatusOr<Value> SplitLines(Evaluator& evaluator, const Text& text, std::string_view name,
                                 const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind(name, arguments, {"keepends"}));
  return Strings(Lines(text, bound.True(0, false)), evaluator.budget());
}

absl::StatusOr<Value> StripMethod(Evaluator& evaluator, const Text& text, std::string_view name,
                                  const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind(name, arguments, {"chars"}));
  std::optional<std::string> characters;
  if (bound.Has(0) && !bound[0].Is(Value::Kind::kNone)) {
    BATON_ASSIGN_OR_RETURN(const Text given, bound.String(0));
    characters = given.bytes();
    BATON_RETURN_IF_ERROR(evaluator.budget().Work(text.size() + characters->size()));
  }
  return MakeString(Strip(text, name != "rstrip", name != "lstrip",
                          characters.has_value() ? &*characters : nullptr),
                    evaluator.budget());
}

// The part of `text` that start and end arguments, in characters, choose.
using Window = std::optional<std::string_view>;
absl::StatusOr<Window> ReadWindow(const BoundArguments& bound, const Text& text) {
  const int64_t length = LengthInCharacters(text.bytes());
  BATON_ASSIGN_OR_RETURN(int64_t start, bound.Integer(1, 0));
  BATON_ASSIGN_OR_RETURN(int64_t end, bound.Integer(2, length));
  if (start < 0) start = std::max<int64_t>(start + length, 0);
  if (end < 0) end = std::max<int64_t>(end + length, 0);
  end = std::min(end, length);
  if (start > end) return Window();
  const size_t from = ByteOffset(text.bytes(), start);
  return Window(std::string_view(text.bytes()).substr(from, ByteOffset(text.bytes(), end) - from));
}

absl::StatusOr<Value> Affix(Evaluator& evaluator, const Text& text, std::string_view name,
                            const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind(name, arguments, {"affix", "start", "end"}, 1));
  BATON_RETURN_IF_ERROR(evaluator.budget().Work(text.size()));
  BATON_ASSIGN_OR_RETURN(const Window window, ReadWindow(bound, text));
  List affixes = {bound[0]};
  if (bound[0].Is(Value::Kind::kTuple)) affixes = bound[0].items();
  for (const Value& affix : affixes) {
    if (!affix.IsString()) {
      return absl::InvalidArgumentError(
          Concat(name, "() needs a string or a tuple of strings, got ", TypeName(affix)));
    }
    if (!window.has_value()) continue;
    if (name == "startswith" ? window->starts_with(affix.str()) : window->ends_with(affix.str())) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

absl::StatusOr<Value> Find(Evaluator& evaluator, const Text& text, std::string_view name,
                           const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind(name, arguments, {"sub", "start", "end"}, 1));
  BATON_ASSIGN_OR_RETURN(const Text part, bound.String(0));
  BATON_RETURN_IF_ERROR(evaluator.budget().Work(text.size()));
  BATON_ASSIGN_OR_RETURN(const Window window, ReadWindow(bound, text));
  const std::string_view within = window.value_or("");
  if (name == "count") {
    if (!window.has_value()) return Value::Int(0);
    if (part.empty()) return Value::Int(LengthInCharacters(within) + 1);
    int64_t count = 0;
    for (size_t at = within.find(part.bytes()); at != std::string_view::npos;
         at = within.find(part.bytes(), at + part.size())) {
      ++count;
    }
    return Value::Int(count);
  }
  const bool last = name[0] == 'r';
  const size_t at = !window.has_value() ? std::string_view::npos
                    : last              ? within.rfind(part.bytes())
                                        : within.find(part.bytes());
  if (at != std::string_view::npos) {
    return Value::Int(LengthInCharacters({text.bytes().data(), within.data() + at}));
  }
  if (name.ends_with("index")) return absl::InvalidArgumentError("substring not found");
  return Value::Int(-1);
}

absl::StatusOr<Value> Replace(Evaluator& evaluator, const Text& text, std::string_view name,
                              const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind(name, arguments, {"old", "new", "count"}, 2));
  BATON_ASSIGN_OR_RETURN(const Text old, bound.String(0));
  BATON_ASSIGN_OR_RETURN(const Text with, bound.String(1));
  BATON_ASSIGN_OR_RETURN(const int64_t most, bound.Integer(2, -1));
  size_t longest = 0;
  const size_t times = old.empty() ? text.size() + 1 : text.size() / old.size() + 1;
  if (__builtin_mul_overflow(times, with.size(), &longest)) longest = SIZE_MAX;
  if (with.size() > old.size()) BATON_RETURN_IF_ERROR(evaluator.budget().Work(longest));
  return MakeString(ReplaceAll(text, old.bytes(), with, most), evaluator.budget());
}

absl::StatusOr<Value> RemoveAffix(Evaluator& evaluator, const Text& text, std::string_view name,
                                  const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind(name, arguments, {"affix"}, 1));
  BATON_ASSIGN_OR_RETURN(const Text affix, bound.String(0));
  size_t begin = 0;
  size_t end = text.size();
  if (name == "removeprefix" && text.bytes().starts_with(affix.bytes())) begin = affix.size();
  if (name == "removesuffix" && text.bytes().ends_with(affix.bytes())) end -= affix.size();
  return MakeString(text.Slice(begin, end), evaluator.budget());
}

absl::StatusOr<Value> Partition(Evaluator& evaluator, const Text& text, std::string_view name,
                                const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind(name, arguments, {"sep"}, 1));
  BATON_ASSIGN_OR_RETURN(const Text separator, bound.String(0));
  if (separator.empty()) return absl::InvalidArgumentError("empty separator");
  BATON_RETURN_IF_ERROR(evaluator.budget().Work(2 * text.size()));
  const bool last = name == "rpartition";
  const size_t at =
      last ? text.bytes().rfind(separator.bytes()) : text.bytes().find(separator.bytes());
  if (at == std::string::npos) {
    if (last) return Value::MakeTuple({Value::String(""), Value::String(""), Value::String(text)});
    return Value::MakeTuple({Value::String(text), Value::String(""), Value::String("")});
  }
  return Value::MakeTuple({Value::String(text.Slice(0, at)), Value::String(separator),
                           Value::String(text.Slice(at + separator.size(), text.size()))});
}

absl::StatusOr<Value> Join(Evaluator& evaluator, const Text& text, std::string_view name,
                           const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind(name, arguments, {"iterable"}, 1));
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(bound[0], evaluator.budget()));
  Text joined;
  for (size_t i = 0; i < items->size(); ++i) {
    const Value& item = (*items)[i];
    if (!item.IsString()) {
      return absl::InvalidArgumentError(
          Concat("join(): element ", i, " must be a string, is ", TypeName(item)));
    }
    BATON_RETURN_IF_ERROR(evaluator.budget().Work(text.size() + item.text().size()));
    if (i > 0) joined.Append(text);
    joined.Append(item.text());
  }
  return MakeString(std::move(joined), evaluator.budget());
}

absl::StatusOr<Value> CaseMethod(Evaluator& evaluator, const Text& text, std::string_view name,
                                 const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(BoundArguments::Bind(name, arguments, {}).status());
  // Mapping case is slow beside copying.
  BATON_RETURN_IF_ERROR(evaluator.budget().Work(8 * text.size()));
  const Case form = name == "upper"        ? Case::kUpper
                    : name == "capitalize" ? Case::kCapitalize
                    : name == "title"      ? Case::kTitle
                    : name == "swapcase"   ? Case::kSwap
                                           : Case::kLower;
  return MakeString(ChangeCase(text, form), evaluator.budget());
}

absl::StatusOr<Value> Justify(Evaluator& evaluator, const Text& text, std::string_view name,
                              const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         BoundArguments::Bind(name, arguments, {"width", "fillchar"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t width, bound.Integer(0, 0));
  BATON_ASSIGN_OR_RETURN(const Text fill, bound.String(1, name == "zfill" ? "0" : " "));
  if (LengthInCharacters(fill.bytes()) != 1) {
    return absl::InvalidArgumentError("the fill character must be exactly one character long");
  }
  const int64_t missing = std::max<int64_t>(width - LengthInCharacters(text.bytes()), 0);
  BATON_RETURN_IF_ERROR(evaluator.budget().Work(static_cast<size_t>(missing) * fill.size()));
  // What Python does with an odd number of characters.
  const int64_t left = name == "ljust"    ? 0
                       : name == "center" ? missing / 2 + (missing & width & 1)
                                          : missing;
  Text justified;
  const bool sign =
      name == "zfill" && (text.bytes().starts_with('-') || text.bytes().starts_with('+'));
  if (sign) justified.AppendSlice(text, 0, 1);
  for (int64_t i = 0; i < left; ++i) justified.Append(fill);
  justified.AppendSlice(text, sign ? 1 : 0, text.size());
  for (int64_t i = left; i < missing; ++i) justified.Append(fill);
  return MakeString(std::move(justified), evaluator.budget());
}

absl::StatusOr<Value> Format(Evaluator& evaluator, const Text& text, std::string_view,
                             const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(Text formatted, FormatBraces(text, arguments, evaluator.budget()));
  return MakeString(std::move(formatted), evaluator.budget());
}

absl::StatusOr<Value> ClassMethod(Evaluator& evaluator, const Text& text, std::string_view name,
                                  const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(BoundArguments::Bind(name, arguments, {}).status());
  BATON_RETURN_IF_ERROR(evaluator.budget().Work(text.size()));
  return Value::Bool(HasClass(name, text.bytes()));
}

Method FindMethod(std::string_view name) {
  constexpr Named<Method> kKnown[] = {
      {"split", Split},
      {"rsplit", Split},
      {"splitlines", SplitLines},
      {"strip", StripMethod},
      {"lstrip", StripMethod},
      {"rstrip", StripMethod},
      {"startswith", Affix},
      {"endswith", Affix},
      {"find", Find},
      {"rfind", Find},
      {"index", Find},
      {"rindex", Find},
      {"count", Find},
      {"replace", Replace},
      {"upper", CaseMethod},
      {"lower", CaseMethod},
      {"capitalize", CaseMethod},
      {"title", CaseMethod},
      {"swapcase", CaseMethod},
      {"casefold", CaseMethod},
      {"join", Join},
      {"format", Format},
      {"partition", Partition},
      {"rpartition", Partition},
      {"removeprefix", RemoveAffix},
      {"removesuffix", RemoveAffix},
      {"ljust", Justify},
      {"rjust", Justify},
      {"center", Justify},
      {"zfill", Justify},
  };
  return IsClassMethod(name) ? ClassMethod : FindNamed(kKnown, name);
}

}  // namespace

std::vector<Text> Lines(const Text& text, bool keep_ends) {
  const std::string_view bytes = text.bytes();
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = NextUtf8(bytes.substr(at));
    const char32_t c = step.code_point;
    size_t end = at + step.length;
    const bool ends_line = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                           c == 0x2028 || c == 0x2029;
    if (ends_line) {
      if (c == '\r' && end < bytes.size() && bytes[end] == '\n') ++end;
      lines.push_back(text.Slice(begin, keep_ends ? end : at));
      begin = end;
    }
    at = end;
  }
  if (begin < bytes.size()) lines.push_back(text.Slice(begin, bytes.size()));
  return lines;
}

bool IsStringMethod(std::string_view name) { return FindMethod(name) != nullptr; }

absl::StatusOr<Value> CallStringMethod(Evaluator& evaluator, const Text& text,
                                       std::string_view name, const Arguments& arguments) {
  return FindMethod(name)(evaluator, text, name, arguments);
}

Text ReplaceAll(const Text& text, std::string_view old, const Text& with, int64_t most) {
  Text replaced;
  size_t done = 0;
  size_t from = 0;
  for (int64_t count = 0; most < 0 || count < most; ++count) {
    const size_t at = text.bytes().find(old, from);
    if (at == std::string::npos) break;
    replaced.AppendSlice(text, done, at);
    replaced.Append(with);
    done = at + old.size();
    from = done;
    if (!old.empty()) continue;
    // Nothing stands before every character, and at the end.
    if (at == text.size()) break;
    from += NextUtf8(std::string_view(text.bytes()).substr(at)).length;
  }
  replaced.AppendSlice(text, done, text.size());
  return replaced;
}

}  // namespace baton::jinja

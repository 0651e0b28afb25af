#include "common/grammar/compile.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/grammar/notations.h"
#include "common/grammar/state_table.h"
#include "common/grammar/utf8_ranges.h"

namespace baton::grammar {
namespace {

using NodeId = Grammar::NodeId;

absl::Status CheckUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (!NextCodePoint(text, at)) {
      return absl::InvalidArgumentError(absl::StrCat("ill-formed UTF-8 at byte ", at));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSize(const Source& source) {
  size_t bytes = source.text.size();
  for (const std::string& choice : source.choices) bytes += choice.size();
  if (bytes > kMaxSourceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", bytes, " bytes, more than the ", kMaxSourceBytes, " accepted"));
  }
  if (source.kind == Source::Kind::kChoice &&
      (source.choices.empty() || source.choices.size() > kMaxChoices)) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be 1 to ", kMaxChoices, " texts, are ", source.choices.size()));
  }
  for (const std::string& choice : source.choices) BATON_RETURN_IF_ERROR(CheckUtf8(choice));
  BATON_RETURN_IF_ERROR(CheckUtf8(source.reasoning_begin));
  BATON_RETURN_IF_ERROR(CheckUtf8(source.reasoning_end));
  return CheckUtf8(source.text);
}

absl::StatusOr<NodeId> AddSource(const Source& source, Grammar& grammar) {
  switch (source.kind) {
    case Source::Kind::kJsonSchema:
      return AddJsonSchema(source.text, grammar);
    case Source::Kind::kRegex:
      return AddRegex(source.text, grammar);
    case Source::Kind::kEbnf:
      BATON_RETURN_IF_ERROR(ParseEbnf(source.text, grammar));
      return grammar.Call(grammar.root());
    case Source::Kind::kChoice: {
      std::vector<NodeId> ways;
      for (const std::string& choice : source.choices) ways.push_back(grammar.Text(choice));
      return grammar.Choice(std::move(ways));
    }
    case Source::Kind::kAnything:
      return absl::InvalidArgumentError("there is nothing to keep to");
  }
  return absl::InternalError("a source of no kind");
}

NodeId SpaceBehindReasoning(Grammar& grammar) {
  return grammar.Repeat(grammar.Chars({{'\n', '\n'}, {' ', ' '}}), 0, 4);
}

NodeId WithReasoning(const Source& source, NodeId text, Grammar& grammar) {
  if (source.reasoning_end.empty()) return text;
  NodeId reasoning =
      grammar.Sequence({grammar.Until(source.reasoning_end), SpaceBehindReasoning(grammar)});
  if (!source.in_reasoning) {
    reasoning = grammar.Optional(
        grammar.Sequence({grammar.SpecialToken(source.reasoning_begin), reasoning}));
  }
  return grammar.Sequence({reasoning, text});
}

// A grammar whose beginning is too ambiguous is refused before it fails a running request.
absl::Status TryBeginning(const Automaton& automaton) {
  constexpr size_t kTriedStates = 16;
  StateTable table(automaton);
  const int32_t start = table.Find({{automaton.start, kBottom}});
  for (int32_t state = start; static_cast<size_t>(state) < std::min(table.size(), kTriedStates);
       ++state) {
    for (int byte = 0; byte < 256; ++byte) table.Step(state, static_cast<uint8_t>(byte));
  }
  if (!table.overflowed()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("is too ambiguous: it may go on in more than ",
                                                 StateTable::kMaxPlaces, " ways"));
}

absl::StatusOr<NodeId> ClosedText(const Source& source, Grammar& grammar) {
  if (source.reasoning_end.empty()) return absl::InvalidArgumentError("reasoning has no end mark");
  const NodeId mark = grammar.SpecialToken(source.reasoning_end);
  if (source.kind == Source::Kind::kAnything) return mark;
  BATON_ASSIGN_OR_RETURN(const NodeId text, AddSource(source, grammar));
  return grammar.Sequence({mark, SpaceBehindReasoning(grammar), text});
}

absl::StatusOr<NodeId> WholeText(const Source& source, Grammar& grammar) {
  BATON_ASSIGN_OR_RETURN(const NodeId text, AddSource(source, grammar));
  return WithReasoning(source, text, grammar);
}

absl::StatusOr<Automaton> CompileUnnamed(const Source& source, bool closing) {
  BATON_RETURN_IF_ERROR(CheckSize(source));
  Grammar grammar;
  const int root = grammar.AddRule("the text");
  BATON_ASSIGN_OR_RETURN(const NodeId body,
                         closing ? ClosedText(source, grammar) : WholeText(source, grammar));
  grammar.Define(root, body);
  grammar.SetRoot(root);
  BATON_ASSIGN_OR_RETURN(Automaton automaton, BuildAutomaton(grammar));
  BATON_RETURN_IF_ERROR(TryBeginning(automaton));
  return automaton;
}

absl::StatusOr<Automaton> CompileNamed(const Source& source, bool closing) {
  absl::StatusOr<Automaton> automaton = CompileUnnamed(source, closing);
  BATON_RETURN_IF_ERROR(Annotate(automaton.status(), NameOf(source.kind)));
  return automaton;
}

}  // namespace

std::string_view NameOf(Source::Kind kind) {
  switch (kind) {
    case Source::Kind::kJsonSchema:
      return "json_schema";
    case Source::Kind::kRegex:
      return "regex";
    case Source::Kind::kEbnf:
      return "ebnf";
    case Source::Kind::kChoice:
      return "choice";
    case Source::Kind::kAnything:
      return "anything";
  }
  return "";
}

absl::StatusOr<Automaton> Compile(const Source& source) { return CompileNamed(source, false); }

absl::StatusOr<Automaton> CompileClosing(const Source& source) {
  return CompileNamed(source, true);
}

}  // namespace baton::grammar

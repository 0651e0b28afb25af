#include "common/config/man_page.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/option_table.h"
#include "common/config/option_text.h"
#include "common/config/options.h"

namespace baton::config {
namespace {

std::string Bold(const std::string& text) { return absl::StrCat("\\fB", text, "\\fR"); }

std::string RoffWord(absl::string_view word) {
  std::string escaped = absl::StrReplaceAll(word, {{"\\", "\\e"}});
  // Else a dash may be printed as a hyphen, which cannot be pasted into a shell.
  const bool literal = absl::StrContains(word, "--") || absl::StartsWith(word, "-");
  return literal ? absl::StrReplaceAll(escaped, {{"-", "\\-"}}) : escaped;
}

// What a value looks like, in the way of man pages: a name in italics, a choice literally.
std::string RoffPlaceholder(const Option& option) {
  std::string text = PlaceholderText(option);
  if (option.is_bool() || !option.spec->allowed().empty()) return text;
  return absl::StrCat(" \\fI", text.substr(1), "\\fR");
}

std::string ManOption(const Option& option) {
  std::vector<std::string> flags;
  for (const std::string& flag : FlagsOf(option)) flags.push_back(Bold(RoffWord(flag)));
  const std::string facts = FactsText(option);
  return absl::StrCat(".TP\n", absl::StrJoin(flags, ", "), RoffPlaceholder(option), "\n",
                      RoffText(HelpSentences(option)), "\n",
                      RoffText(absl::StrCat("(", facts, facts.empty() ? "" : ". ", "For ",
                                            RolesText(option), ".)")),
                      "\n");
}

}  // namespace

std::string RoffText(const std::string& text) {
  std::vector<std::string> words;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) words.push_back(RoffWord(word));
  std::string line = absl::StrJoin(words, " ");
  const bool control = absl::StartsWith(line, ".") || absl::StartsWith(line, "'");
  return control ? absl::StrCat("\\&", line) : line;
}

std::string ManCommands() {
  std::string text;
  for (const Command command : AllCommands()) {
    absl::StrAppend(&text, ".TP\n", Bold(absl::StrCat("baton ", CommandName(command))), "\n",
                    RoffText(CommandSummary(command)), "\n");
  }
  return text;
}

std::string ManOptions() {
  std::string text;
  std::string group;
  for (const Option& option : OptionTable()) {
    if (option.spec->group() != group) {
      group = option.spec->group();
      absl::StrAppend(&text, ".SS ", group, "\n");
    }
    absl::StrAppend(&text, ManOption(option));
  }
  return text;
}

}  // namespace baton::config

// What the table says to people: --help, `baton validate` and docs/options.md.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/foreign_flags.h"
#include "common/config/option_table.h"
#include "common/config/option_text.h"
#include "common/config/options.h"

namespace baton::config {
namespace {

constexpr size_t kColumns = 80;
constexpr char kMask[] = "********";

// Breaks `text` between words so that lines, indented by `indent`, stay within kColumns.
std::string Wrap(const std::string& text, size_t indent) {
  const std::string margin(indent, ' ');
  std::string result;
  std::string line = margin;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (line.size() > indent && line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(&result, line, "\n");
      line = margin;
    }
    absl::StrAppend(&line, line.size() > indent ? " " : "", word);
  }
  return absl::StrCat(result, line, "\n");
}

std::string HelpOf(const Option& option) {
  const std::string facts = FactsText(option);
  std::string text = HelpSentences(option);
  if (!facts.empty()) absl::StrAppend(&text, " (", facts, ")");
  return absl::StrCat("  ", absl::StrJoin(FlagsOf(option), ", "), PlaceholderText(option), "\n",
                      Wrap(text, 6));
}

bool Mentions(const Option& option, const std::string& word) {
  const std::string lower = absl::AsciiStrToLower(word);
  const std::string all = absl::AsciiStrToLower(
      absl::StrCat(option.flag, " ", option.name, " ", absl::StrJoin(option.spec->alias(), " "),
                   " ", option.spec->group(), " ", HelpSentences(option)));
  return absl::StrContains(all, lower);
}

// "- `--port` (=30000; 0..65535; router, up): what it means". Pages have lists in the place of
// tables: most of what a row says is in its last column.
std::string MarkdownItem(const Option& option, bool with_roles) {
  std::vector<std::string> facts;
  const std::string defaults = DefaultsText(option);
  if (!defaults.empty()) facts.push_back(absl::StrCat("=", defaults));
  std::string values = absl::StrReplaceAll(RangeText(option), {{" to ", ".."}});
  if (!option.spec->unit().empty()) {
    absl::StrAppend(&values, values.empty() ? "" : " ", option.spec->unit());
  }
  if (!values.empty()) facts.push_back(values);
  if (with_roles) facts.push_back(RolesText(option));
  const std::string said = absl::StrJoin(facts, "; ");
  return absl::StrCat("- `", absl::StrJoin(FlagsOf(option), "`, `"), "`",
                      said.empty() ? "" : absl::StrCat(" (", said, ")"), ": ",
                      HelpSentences(option), "\n");
}

// The options of one heading. Roles that all of them share are said once, above them.
std::string MarkdownGroup(const std::string& group, const std::vector<const Option*>& options) {
  const std::string roles = RolesText(*options.front());
  const bool same = std::all_of(options.begin(), options.end(), [&roles](const Option* option) {
    return RolesText(*option) == roles;
  });
  std::string text = absl::StrCat("\n## ", group, "\n\n");
  if (same) absl::StrAppend(&text, "For ", roles, ":\n\n");
  for (const Option* const option : options) absl::StrAppend(&text, MarkdownItem(*option, !same));
  return text;
}

// The options by heading, these in the order in which they come up first.
std::vector<std::pair<std::string, std::vector<const Option*>>> ByGroup() {
  std::vector<std::pair<std::string, std::vector<const Option*>>> groups;
  for (const Option& option : OptionTable()) {
    const std::string& name = option.spec->group();
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&name](const auto& entry) { return entry.first == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), {name, {}});
    group->second.push_back(&option);
  }
  return groups;
}

// What becomes of a flag, with what it stands for or takes behind it.
std::string ForeignFateText(const ForeignFlag& flag) {
  if (flag.fate == ForeignFlag::Fate::kMeans) return absl::StrCat("is `--", flag.text, "`");
  if (flag.only == nullptr) return "";
  std::string only = absl::StrCat("with ", absl::StrReplaceAll(flag.only, {{"|", ", "}}));
  if (flag.beside != nullptr) absl::StrAppend(&only, ", or beside `--", flag.beside, "`");
  return only;
}

// The list of the flags of one fate. Flags of which the same is said share a line.
std::string ForeignList(ForeignFlag::Fate fate) {
  std::vector<std::pair<std::string, std::string>> lines;  // What is said of flags, and the flags.
  for (const ForeignFlag& flag : ForeignFlags()) {
    if (flag.fate != fate) continue;
    const bool means = fate == ForeignFlag::Fate::kMeans;
    const std::string what = ForeignFateText(flag);
    const std::string why = means                  ? ""
                            : flag.text == nullptr ? "Baton has nothing like it"
                                                   : flag.text;
    const std::string said =
        absl::StrCat(what.empty() ? "" : " ", what, why.empty() ? "" : ": ", why);
    const auto same = std::find_if(lines.begin(), lines.end(),
                                   [&said](const auto& line) { return line.first == said; });
    const std::string name = absl::StrCat("`--", flag.name, "`");
    if (same != lines.end()) {
      absl::StrAppend(&same->second, ", ", name);
    } else {
      lines.emplace_back(said, name);
    }
  }
  std::string text;
  for (const auto& [said, flags] : lines) absl::StrAppend(&text, "- ", flags, said, "\n");
  return text;
}

// The flags of SGLang and vLLM that are no options or aliases here.
std::string ForeignMarkdown() {
  return absl::StrCat(
      "\n## Flags of SGLang and vLLM\n\n"
      "The options of a launch line of SGLang or vLLM may stand behind `baton serve`, `router`,\n"
      "`worker`, `up` and `validate`. Those that are no options or aliases above are listed here.\n"
      "Variables named `SGLANG_`, `SGL_` or `VLLM_` that are set and not read are named at the\n"
      "start.\n\n"
      "**Taken**, since Baton does it anyway, or since it tunes how another engine does it; the\n"
      "process says in a line what it means here:\n\n",
      ForeignList(ForeignFlag::Fate::kTaken), "\n**Taken for an option:**\n\n",
      ForeignList(ForeignFlag::Fate::kMeans), "\n**Refused**, with what to use instead:\n\n",
      ForeignList(ForeignFlag::Fate::kRefused));
}

}  // namespace

std::string HelpText(Command command, const std::string& word) {
  std::string options;
  std::string group;
  for (const Option& option : OptionTable()) {
    if (!Shown(option, command) || !Mentions(option, word)) continue;
    if (option.spec->group() != group) {
      group = option.spec->group();
      absl::StrAppend(&options, "\n", group, ":\n");
    }
    absl::StrAppend(&options, HelpOf(option));
  }
  const char* const name = CommandName(command);
  if (options.empty()) {
    return absl::StrCat("No option of baton ", name, " mentions '", word,
                        "'; --help lists all of them.\n");
  }
  const char* const model = command == Command::kServe ? " MODEL" : "";
  return absl::StrCat("Usage: baton ", name, model, " [OPTION]...\n", options, "\n",
                      Wrap("An option --some-name is also the environment variable "
                           "BATON_SOME_NAME and the key some_name of the YAML file that --config "
                           "names. A flag wins over a variable, a variable over the file. Numbers "
                           "may end in k, m, g (thousands) or K, M, G (powers of 1024). "
                           "--help=WORD shows the options that mention WORD.",
                           0));
}

std::string EffectiveText(const ParsedOptions& options) {
  struct Row {
    std::string name, value, source;
  };
  std::vector<Row> rows;
  size_t name_width = 0;
  size_t value_width = 0;
  for (const Option& option : OptionTable()) {
    const auto source = options.sources.find(option.name);
    if (source == options.sources.end()) continue;
    std::string value = ValueText(option, options.values);
    if (option.spec->secret() && !value.empty()) value = kMask;
    if (value.empty()) value = "-";
    rows.push_back({option.name, value, SourceText(source->second)});
    name_width = std::max(name_width, option.name.size());
    value_width = std::max(value_width, value.size());
  }
  std::string text;
  for (const Row& row : rows) {
    absl::StrAppend(&text, row.name, std::string(name_width + 2 - row.name.size(), ' '), row.value,
                    std::string(value_width + 2 - row.value.size(), ' '), row.source, "\n");
  }
  return text;
}

std::string OptionsMarkdown() {
  std::string text =
      "# Options\n\n"
      "Generated from `proto/baton/v1/config.proto` by `./dev docs`; do not edit.\n\n"
      "Every option is a flag, an environment variable and a YAML key: `--page-size 64`,\n"
      "`--page-size=64`, `BATON_PAGE_SIZE=64`, or `page_size: 64` in the file that `--config`\n"
      "names. A flag wins over a variable, a variable over the file, the file over the default.\n"
      "A boolean flag needs no value. Numbers may end in `k`, `m`, `g` (thousands, millions,\n"
      "billions) or `K`, `M`, `G` (powers of 1024). Unknown names are refused. Options of a\n"
      "cluster's other roles are passed over, so that processes may share a file, an environment\n"
      "or a command line; flags among them are named at the start.\n\n"
      "In brackets: the default, the values, and the roles that take the option. Prefill and\n"
      "decode are `baton worker --disaggregation-mode=...`; with null, colocated, a worker takes\n"
      "prefill's options except `--max-prefill-requests`. `baton serve` takes up's except\n"
      "`--decodes`, `--decode-pp-size` and `--decode-tp-size`. `baton validate` takes every "
      "option\n"
      "of a cluster's processes.\n";
  for (const auto& [group, options] : ByGroup()) {
    absl::StrAppend(&text, MarkdownGroup(group, options));
  }
  absl::StrAppend(&text, ForeignMarkdown());
  return text;
}

}  // namespace baton::config

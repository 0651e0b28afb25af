#include "common/config/completion.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/config/option_table.h"
#include "common/config/option_text.h"
#include "common/config/options.h"

namespace baton::config {
namespace {

constexpr char kBashEnd[] = R"(
_baton() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local command=${COMP_WORDS[1]} flags='' switches=''
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    _baton_words "$_baton_commands" "$word"
    return
  fi
  if [[ $command == model || $command == completion ]] && ((COMP_CWORD == 2)); then
    if [[ $command == model ]]; then _baton_words 'info make' "$word"; else _baton_words 'bash zsh' "$word"; fi
    return
  fi
  if [[ $command == model ]]; then command="model ${COMP_WORDS[2]}"; fi
  _baton_flags "$command"
  # bash takes --flag=value apart: flag, =, value.
  if [[ $word == = ]]; then
    _baton_value "$previous" ''
  elif [[ $previous == = ]]; then
    _baton_value "${COMP_WORDS[COMP_CWORD - 2]}" "$word"
  elif [[ $previous == --* && " $switches " != *" $previous "* ]]; then
    _baton_value "$previous" "$word"
  elif [[ $command == serve && $word != -* ]]; then
    _baton_paths -d "$word"
  else
    _baton_words "$flags" "$word"
  fi
}
complete -F _baton baton
)";

constexpr char kBashWords[] = R"(
_baton_words() {
  mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2")
}

_baton_paths() {
  compopt -o filenames 2>/dev/null || true # Outside of a completion there are no options of one.
  mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
}
)";

constexpr char kZshEnd[] = R"(
_baton() {
  local curcontext=$curcontext state
  local -a line
  _arguments -C '1:command:->command' '*::option:->option'
  case $state in
    command) _describe -t commands command baton_commands ;;
    option)
      case $words[1] in
        model)
          if ((CURRENT == 2)); then
            _values 'subcommand' info make
          else
            local name="model $words[2]"
            shift words
            ((CURRENT--))
            _baton_options "$name"
          fi
          ;;
        completion) _values 'shell' bash zsh ;;
        *) _baton_options "$words[1]" ;;
      esac
      ;;
  esac
}

if [[ $funcstack[1] == _baton ]]; then _baton "$@"; else compdef _baton baton; fi
)";

std::string Header(const std::string& shell) {
  return absl::StrCat("# Completion of baton's commands and options for ", shell,
                      ".\n# Made from the table of options by `baton completion ", shell, "`.\n");
}

// The first words of the command line: `model info` and `model make` share theirs.
std::vector<std::string> FirstWords() {
  std::vector<std::string> words;
  for (const Command command : AllCommands()) {
    const std::string name = CommandName(command);
    if (name.find(' ') == std::string::npos) words.push_back(name);
  }
  for (const char* word : {"model", "completion", "--help", "--version"}) words.emplace_back(word);
  return words;
}

std::vector<std::string> FlagsOfCommand(Command command, bool switches_alone) {
  std::vector<std::string> flags = {"--help"};
  for (const Option& option : OptionTable()) {
    if (!Shown(option, command) || (switches_alone && !option.is_bool())) continue;
    for (std::string& flag : FlagsOf(option)) flags.push_back(std::move(flag));
  }
  return flags;
}

// What a value may be, as words; empty if there is no list.
std::string ValueWords(const Option& option) {
  if (option.is_bool()) return "true false";
  return absl::StrJoin(option.spec->allowed(), " ");
}

std::string BashValues() {
  std::string text = "\n_baton_value() {\n  case $1 in\n";
  for (const Option& option : OptionTable()) {
    const std::string words = ValueWords(option);
    std::string action;
    if (!words.empty()) {
      action = absl::StrCat("_baton_words '", words, "' \"$2\"");
    } else if (option.spec->path() == v1::OptionSpec::DIRECTORY) {
      action = "_baton_paths -d \"$2\"";
    } else if (option.spec->path() == v1::OptionSpec::FILE) {
      action = "_baton_paths -f \"$2\"";
    } else {
      continue;
    }
    absl::StrAppend(&text, "    ", absl::StrJoin(FlagsOf(option), " | "), ") ", action, " ;;\n");
  }
  return absl::StrCat(text, "  esac\n}\n");
}

std::string BashScript() {
  std::string text = absl::StrCat(Header("bash"), "\n_baton_commands='",
                                  absl::StrJoin(FirstWords(), " "), "'\n", kBashWords,
                                  "\n# Flags of a command, and those of them that need no value.\n"
                                  "_baton_flags() {\n  case $1 in\n");
  for (const Command command : AllCommands()) {
    absl::StrAppend(&text, "    '", CommandName(command), "')\n      flags='",
                    absl::StrJoin(FlagsOfCommand(command, /*switches_alone=*/false), " "),
                    "'\n      switches='",
                    absl::StrJoin(FlagsOfCommand(command, /*switches_alone=*/true), " "),
                    "'\n      ;;\n");
  }
  return absl::StrCat(text, "  esac\n}\n", BashValues(), kBashEnd);
}

std::string ZshQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", R"('\'')"}}), "'");
}

// Up to the first full stop that ends a sentence: a menu has one line for each option.
std::string FirstSentence(const std::string& help) {
  size_t end = help.find(". ");
  while (end != std::string::npos && end > 0 && help[end - 1] == '.')
    end = help.find(". ", end + 1);
  std::string sentence = help.substr(0, end);
  if (absl::EndsWith(sentence, ".")) sentence.pop_back();
  return sentence;
}

std::string ZshAction(const Option& option) {
  if (option.spec->path() == v1::OptionSpec::DIRECTORY) return "_files -/";
  if (option.spec->path() == v1::OptionSpec::FILE) return "_files";
  const std::string words = ValueWords(option);
  return words.empty() ? "" : absl::StrCat("(", words, ")");
}

// One specification of _arguments for each flag; an option is offered once, under any of its names.
void AppendZshOption(const Option& option, std::string* text) {
  const std::vector<std::string> flags = FlagsOf(option);
  const std::string help =
      absl::StrReplaceAll(FirstSentence(option.spec->help()),
                          {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
  const std::string unit = option.spec->unit().empty() ? "value" : option.spec->unit();
  for (const std::string& flag : flags) {
    // A switch has its value, if any, in the same word; others in that or the next.
    const std::string form =
        option.is_bool() ? absl::StrCat(flag, "=-[", help, "]::", unit, ":", ZshAction(option))
                         : absl::StrCat(flag, "=[", help, "]:", unit, ":", ZshAction(option));
    const std::string excluded =
        flags.size() == 1 ? "" : absl::StrCat("(", absl::StrJoin(flags, " "), ")");
    absl::StrAppend(text, "        ", ZshQuoted(excluded + form), "\n");
  }
}

std::string ZshScript() {
  std::string text = absl::StrCat("#compdef baton\n", Header("zsh"), "\nbaton_commands=(\n");
  for (const Command command : AllCommands()) {
    const std::string name = CommandName(command);
    if (name.find(' ') != std::string::npos) continue;
    absl::StrAppend(&text, "  ",
                    ZshQuoted(absl::StrCat(
                        name, ":", absl::StrReplaceAll(CommandSummary(command), {{":", "\\:"}}))),
                    "\n");
  }
  absl::StrAppend(&text,
                  "  'model:describe a checkpoint, or write a random one'\n"
                  "  'completion:write a completion script'\n"
                  "  '--help:list the commands'\n  '--version:say which baton this is'\n)\n\n"
                  "_baton_options() {\n  local -a specs\n  case $1 in\n");
  for (const Command command : AllCommands()) {
    absl::StrAppend(&text, "    '", CommandName(command), "')\n      specs=(\n",
                    "        '--help=-[List the options, or those that mention a word]::word:'\n",
                    command == Command::kServe ? "        '::model:_files -/'\n" : "");
    for (const Option& option : OptionTable()) {
      if (Shown(option, command)) AppendZshOption(option, &text);
    }
    absl::StrAppend(&text, "      )\n      ;;\n");
  }
  return absl::StrCat(text, "    *) return 1 ;;\n  esac\n  _arguments \"$specs[@]\"\n}\n", kZshEnd);
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const std::string& shell) {
  if (shell == "bash") return BashScript();
  if (shell == "zsh") return ZshScript();
  return absl::InvalidArgumentError(
      absl::StrCat(shell.empty() ? "which shell? " : absl::StrCat("no script for '", shell, "'; "),
                   "there are bash and zsh"));
}

}  // namespace baton::config

// baton: picks the command, reads its options, runs it.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/stdio_queue.h"
#include "common/config/completion.h"
#include "common/config/node_share.h"
#include "common/config/options.h"
#include "common/config/process_input.h"
#include "common/telemetry/metrics_table.h"
#include "services/baton/commands.h"

namespace baton {
namespace {

std::string Usage() {
  std::string text = "usage: baton COMMAND [--option=value ...]\n";
  for (const config::Command command : config::AllCommands()) {
    absl::StrAppend(&text, absl::StrFormat("  %-11s  %s\n", config::CommandName(command),
                                           config::CommandSummary(command)));
  }
  return absl::StrCat(text,
                      "`baton COMMAND --help` lists the options of a command, `--help=WORD` those "
                      "that mention WORD. `baton --version` says which this is, `baton completion "
                      "bash` or `zsh` writes a completion script for that shell.\n");
}

constexpr char kModelUsage[] =
    "usage: baton model info --model-path DIR    describe a checkpoint directory\n"
    "       baton model make --out DIR [OPTION]  write a random checkpoint of a given shape\n"
    "`baton model info --help` and `baton model make --help` list their options.\n";

bool IsHelp(const std::string& word) { return word == "--help" || word == "-h" || word == "help"; }

struct Chosen {
  config::Command command;
  int skip;  // Arguments before the first option.
};

std::optional<Chosen> Choose(int argc, char** argv) {
  const std::string first = argc < 2 ? "" : argv[1];
  const int words = first == "model" && argc > 2 ? 2 : 1;
  const std::string name = words == 2 ? absl::StrCat(first, " ", argv[2]) : first;
  for (const config::Command command : config::AllCommands()) {
    if (name == config::CommandName(command)) return Chosen{command, 1 + words};
  }
  return std::nullopt;
}

int End(config::Command command, const absl::Status& status) {
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "baton %s: %s\n", config::CommandName(command),
               std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

int Run(const config::ParsedOptions& options, const char* self) {
  const config::Command command = options.command;
  switch (command) {
    case config::Command::kRouter:
      return End(command, RunRouterCommand(options));
    case config::Command::kWorker:
      if (config::IsNode(options.values)) return End(command, RunLaunchCommand(options, self));
      return End(command, RunWorkerCommand(options));
    case config::Command::kServe:
    case config::Command::kUp:
      return End(command, RunLaunchCommand(options, self));
    case config::Command::kValidate:
      return RunValidateCommand(options);
    case config::Command::kDrain:
      return End(command, RunDrainCommand(options));
    case config::Command::kSimulate:
      return End(command, RunSimulateCommand(options));
    case config::Command::kTrace:
      return End(command, RunTraceCommand(options));
    case config::Command::kReplay:
      return End(command, RunReplayCommand(options));
    case config::Command::kModelInfo:
      return std::min(kExitFailed, End(command, RunModelInfoCommand(options)));
    case config::Command::kModelMake:
      return std::min(kExitFailed, End(command, RunModelMakeCommand(options)));
  }
  return kExitUsage;
}

// Answers what is no command to run: help of all, help of `model`, the version, completion.
int Explain(int argc, char** argv) {
  const std::string name = argc < 2 ? "" : argv[1];
  const std::string next = argc < 3 ? "" : argv[2];
  if (name == "--version" || name == "version") {
    std::printf("baton %s\n", kBatonVersion);
    return kExitDone;
  }
  if (name == "completion") {
    const absl::StatusOr<std::string> script = config::CompletionScript(next);
    if (!script.ok()) {
      std::fprintf(stderr, "baton completion: %s\n",
                   std::string(script.status().message()).c_str());
      return kExitUsage;
    }
    std::fputs(script->c_str(), stdout);
    return kExitDone;
  }
  const bool asked = IsHelp(name) || (name == "model" && IsHelp(next));
  if (name == "model" && !asked && !next.empty()) {
    std::fprintf(stderr, "baton model: there is no '%s'\n", next.c_str());
  } else if (name != "model" && !asked && !name.empty()) {
    std::fprintf(stderr, "baton: there is no command '%s'\n", name.c_str());
  }
  std::fputs(name == "model" ? kModelUsage : Usage().c_str(), asked ? stdout : stderr);
  return asked ? kExitDone : kExitUsage;
}

int Main(int argc, char** argv) {
  PrepareDescriptors();
  const std::optional<Chosen> chosen = Choose(argc, argv);
  if (!chosen.has_value()) return Explain(argc, argv);
  const auto options =
      config::ParseOptions(chosen->command, config::FromProcess(argc, argv, chosen->skip));
  if (!options.ok()) {
    End(chosen->command, options.status());
    return kExitUsage;
  }
  if (options->help.has_value()) {
    std::fputs(config::HelpText(chosen->command, *options->help).c_str(), stdout);
    return kExitDone;
  }
  return Run(*options, "/proc/self/exe");
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  const int exit_code = baton::Main(argc, argv);
  std::fflush(nullptr);
  baton::FlushOutput();
  return exit_code;
}

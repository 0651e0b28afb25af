// baton: picks the command, reads its options, runs it.
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/output_queue.h"
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
  if (argc < 2) return std::nullopt;
  const std::string name = argv[1];
  if (name == "router") return Chosen{config::Command::kRouter, 2};
  if (name == "worker") return Chosen{config::Command::kWorker, 2};
  if (name == "serve") return Chosen{config::Command::kServe, 2};
  if (name == "up") return Chosen{config::Command::kUp, 2};
  if (name == "validate") return Chosen{config::Command::kValidate, 2};
  if (name == "drain") return Chosen{config::Command::kDrain, 2};
  if (name == "simulate") return Chosen{config::Command::kSimulate, 2};
  if (name == "trace") return Chosen{config::Command::kTrace, 2};
  if (name == "replay") return Chosen{config::Command::kReplay, 2};
  if (name != "model" || argc < 3) return std::nullopt;
  if (std::strcmp(argv[2], "info") == 0) return Chosen{config::Command::kModelInfo, 3};
  if (std::strcmp(argv[2], "make") == 0) return Chosen{config::Command::kModelMake, 3};
  return std::nullopt;
}

int Run(const config::ParsedOptions& options, const char* self) {
  switch (options.command) {
    case config::Command::kRouter:
      return RunRouterCommand(options);
    case config::Command::kWorker:
      if (config::IsNode(options.values)) return RunLaunchCommand(options, self);
      return RunWorkerCommand(options);
    case config::Command::kServe:
    case config::Command::kUp:
      return RunLaunchCommand(options, self);
    case config::Command::kValidate:
      return RunValidateCommand(options);
    case config::Command::kDrain:
      return RunDrainCommand(options);
    case config::Command::kSimulate:
      return RunSimulateCommand(options);
    case config::Command::kTrace:
      return RunTraceCommand(options);
    case config::Command::kReplay:
      return RunReplayCommand(options);
    case config::Command::kModelInfo:
      return RunModelInfoCommand(options);
    case config::Command::kModelMake:
      return RunModelMakeCommand(options);
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
    std::fprintf(stderr, "baton %s: %s\n", config::CommandName(chosen->command),
                 std::string(options.status().message()).c_str());
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

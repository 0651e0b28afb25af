// Options of a Baton process, read from flags, BATON_* environment variables and a YAML file by
// the one table in proto/baton/v1/config.proto. Nothing here touches the process: arguments,
// environment and file reader are handed in (process_input.h makes them from the real ones).
//
//   auto options = config::ParseOptions(config::Command::kRouter, config::FromProcess(argc, argv));
//   if (!options.ok()) ...                            // The message names option, value and
//   source. if (options->help) print(config::HelpText(...));  // --help or --help=WORD was given.
//   options->values.page_size()
//
// Precedence: flag > environment > file > default. Of a flag given twice the last one counts, so
// that scripts may append. Numbers take SI suffixes as vLLM's do: 25k is 25,000 and 1m a million;
// 25K is 25 * 1024, 1M is 1024 * 1024.
#ifndef COMMON_CONFIG_OPTIONS_H_
#define COMMON_CONFIG_OPTIONS_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::config {

// What the user runs: `baton router`, `baton worker` ...
enum class Command {
  kRouter,
  kWorker,
  kServe,
  kUp,
  kValidate,
  kModelInfo,
  kModelMake,
  kDrain,
  kSimulate,
  kTrace,
  kReplay,
};

// In the order in which they are shown.
const std::vector<Command>& AllCommands();

// "router", "model info" ...: what follows `baton`.
const char* CommandName(Command command);

// What it does, in half a line.
const char* CommandSummary(Command command);

// The part a process plays; a worker's comes from --disaggregation-mode.
using Role = v1::OptionSpec::Role;

// "router", "prefill", "decode", "colocated", "up", "validate", "model", "drain", "simulate",
// "trace" or "replay".
std::string RoleName(Role role);

struct OptionInput {
  std::vector<std::string> args;  // What follows the command's own name.
  // NAME=value; what is not BATON_*, SGLang's or vLLM's is not looked at.
  std::vector<std::string> environment;
  // Returns the text of the file that --config names.
  std::function<absl::StatusOr<std::string>(const std::string& path)> read_file;
};

struct OptionSource {
  enum class Kind {
    kDefault,
    kDerived,  // Computed from other options; `where` names them.
    kFile,
    kEnvironment,
    kFlag,
    kArgument,  // `serve MODEL`
  };
  Kind kind = Kind::kDefault;
  std::string where;  // "cluster.yaml:12", "BATON_PAGE_SIZE", "--page-size", "--model-path".
};

// "flag --page-size", "cluster.yaml:12", "default" ...
std::string SourceText(const OptionSource& source);

struct ParsedOptions {
  Command command = Command::kRouter;
  Role role = v1::OptionSpec::ROLE_UNSPECIFIED;
  v1::Options values;                           // Defaults filled in, ranges checked.
  std::map<std::string, OptionSource> sources;  // By option name; every option of `role`.
  // What of the command line and the environment means something else here than where it comes
  // from (SGLang, vLLM), or nothing: a sentence each, to be logged at the start.
  std::vector<std::string> notes;
  // Set if --help was given: its WORD, or "". Nothing else is then read or checked.
  std::optional<std::string> help;
};

// " (set by flag --page-size)"; empty of a default.
std::string SetByText(const ParsedOptions& options, const std::string& name);

// Reads and checks everything, Validate included. Errors are InvalidArgument with the option as
// field (common/base/status.h: FieldOf) and a message that says what was found, where, and what was
// expected. Options of a cluster's other roles are skipped, so that processes may share them; of
// flags a note says so. Unknown ones are refused everywhere.
absl::StatusOr<ParsedOptions> ParseOptions(Command command, const OptionInput& input);

// The rules that span options, such as --pp-rank < --pp-size, and features that come later.
absl::Status Validate(Command command, const v1::Options& options);

// The process that `validate` is asked about: the one of --disaggregation-mode, or UP, a cluster.
// null is a cluster unless a worker's place is given. For all other commands `options.role`.
Role CheckedRole(const ParsedOptions& options);

// Arguments that give a child process of `role` the values that were set for its parent (`baton
// up`), wherever they were set. Secrets and --config are left out.
std::vector<std::string> ChildArguments(const ParsedOptions& parent, Role role);

// `environment` for such a child: without BATON_*, SGLang's and vLLM's variables (ChildArguments
// speaks for them: a parent's BATON_GRPC_PORT is not its children's), with the secrets that apply
// to `role`.
std::vector<std::string> ChildEnvironment(const ParsedOptions& parent, Role role,
                                          const std::vector<std::string>& environment);

// Help for `command`, grouped and wrapped; with `word`, only options that mention it.
std::string HelpText(Command command, const std::string& word = "");

// One line for each option of the process: name, value, source. Secrets are masked.
std::string EffectiveText(const ParsedOptions& options);

// docs/options.md.
std::string OptionsMarkdown();

}  // namespace baton::config

#endif  // COMMON_CONFIG_OPTIONS_H_
